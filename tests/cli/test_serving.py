"""`paceline simulate`, `compare --workload`, `metrics`, `cluster`, `workload`: printed, refused, interrupted."""

import json

import pytest
from paceline.runs.serving import write_serving
from paceline.studies.serving import metrics

from ..reports.making import ABOUT, worked_log
from ..traces.workloads.files import write
from .command_line import done, paceline, refused

LOAD = "poisson:rate=400,requests=30"
ALL = ("--workload", LOAD, "--cluster", "h100")
INTERRUPTS = """
import os, signal
from paceline.policies import Verify


class Interrupts:
    def __init__(self, pool):
        self.target, self.left = pool.target, 50

    def decide(self, seen):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGINT)
        return Verify(self.target)

    def learn(self, outcome):
        pass
"""


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_ctrl_c_keeps_what_was_simulated(command, tmp_path, signals_put_back):
    (tmp_path / "mine.py").write_text(INTERRUPTS)
    kept = ("--out", "run") if command == "simulate" else ("--log", "run", "--policy", "plain", "--seeds", "2")
    ran = paceline(command, *ALL, *kept, "--policy", "mine.py:Interrupts")
    assert ran.code == 130, ran
    if command == "simulate":
        assert ran.err.startswith("paceline: error: interrupted: ")
        assert ran.err.endswith(" requests finished and are kept\n")
        assert "(interrupted)" in done("metrics", tmp_path / "run")
    else:
        assert ran.err == "paceline: error: interrupted: 1 row more was asked for\n"
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["plain-seed0", "plain-seed1"]


@pytest.mark.parametrize(
    ("command", "shorter"),
    [
        (("recommend", *ALL, "--rate", "9", "--most", "1"), "--limit, --seeds and --most"),
        (("compare", "--find-rate", "p99_ttft < 1", *ALL), "--limit and --seeds"),
        (("whatif", *ALL, "--change", "prefix_cache=off"), "--limit and --seeds"),
    ],
)
def test_what_keeps_nothing_says_what_makes_it_shorter(command, shorter, tmp_path, signals_put_back):
    (tmp_path / "mine.py").write_text(INTERRUPTS)
    load = ["poisson:requests=30" if word == LOAD and command[0] != "whatif" else word for word in command]
    ran = paceline(*load, "--policy", "mine.py:Interrupts")
    told = f"paceline: error: interrupted: nothing is kept; {shorter} make it shorter\n"
    assert (ran.code, ran.out, ran.err) == (130, "", told)


def test_a_row_that_is_wrong_keeps_what_came_before_it(tmp_path):
    rows = [{"request_id": str(n), "arrives_s": n, "prompt_tokens": 9, "output_tokens": 4} for n in range(3)]
    load = tmp_path / "load.jsonl"
    load.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {**rows[2], "output_tokens": 0})))
    ran = paceline("simulate", "--workload", load, "--cluster", "h100", "--policy", "plain", "--out", tmp_path / "run")
    assert ran.code == 2
    assert ran.err.startswith(f"paceline: error: {load}: line 4")
    assert f"{tmp_path / 'run'}: partial, stopped at 2.000 s (error in the workload)" in ran.out.replace("\n", " ")
    assert done("metrics", tmp_path / "run") == ran.out


def test_runs_alike_but_for_their_setting_are_told_apart_by_folder(tmp_path):
    write_serving(worked_log(), tmp_path / "run")
    write_serving(worked_log(ABOUT.model_copy(update={"setting": {"rate": 2}})), tmp_path / "faster")
    shown = repr(metrics([tmp_path / "run", tmp_path / "faster"]))
    assert str(tmp_path / "run") in shown
    assert "faster" in shown
    assert metrics(worked_log()).to_json()["rows"][0]["runs"][0]["folder"] == "run 1"
    with pytest.raises(ValueError, match="`runs` must hold one, got none"):
        metrics([])


# -- refusals

LATER = ("validate", "--trace", "a.trace", "--prompts", "p.jsonl")
SERVED = (*LATER, "--workload", "poisson:requests=2", "--cluster", "h100")
CLOSED = ("--workload", "closed:concurrency=2,requests=3", "--policy", "plain", "--cluster", "h100")
UNDER_LOAD = "does not apply to --workload, whose batches are the cluster's"
TWICE = "--slo ttft is given twice"
FEW = "constant:rate=1,requests=3"


def test_a_seed_of_a_file_that_is_read_as_it_is_is_refused(tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text('{"arrives_s": 0.5, "prompt_tokens": 4, "output_tokens": 3}\n')
    assert refused("workload", load, "--seed", "7") == f"--seed must be left out: nothing of '{load}' is drawn"
    assert "drawn, seed 7" in done("workload", "poisson:rate=1,requests=3,prompt=1,output=1", "--seed", "7")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("compare", "--rate", "4"), "--rate goes with --workload"),
        (("compare", "--horizon-seconds", "4"), "--horizon-seconds goes with --workload"),
        (("compare", "--workload", LOAD), "--workload goes with --cluster FILE"),
        (("compare", *ALL, "--rate", "1,0"), "--rate must be in [1e-9, 1e9], got 0.0"),
        (("compare", *ALL, "--rate", "1,x"), "--rate must hold numbers"),
        (("compare", *ALL, "--batch", "4"), "--batch does not apply to --workload"),
        (("compare", *ALL, "--by-tag"), "--by-tag does not apply to --workload"),
        (("compare", *ALL, "--sweep", "draft:1../target"), "got '1..' in 'draft:1../target'"),
        (("simulate", *ALL, "--policy", "plain", "--policy", "ngram"), "--policy must be given once"),
        (("simulate", *ALL, "--policy", "plain", "--rate", "4"), "--rate must be given once"),
        (("compare", "--concurrency", "4"), "--concurrency goes with --workload"),
        (("simulate", *ALL, "--policy", "plain", "--concurrency", "4"), "--concurrency must be left out: 'poisson:"),
        (("simulate", *CLOSED, "--rate", "4"), "--rate must be left out: 'closed:"),
        (("compare", *CLOSED, "--rate", "4"), "--rate must be left out: 'closed:"),
        (("simulate", *CLOSED, "--concurrency", "4"), "--concurrency must be given once: 'closed:"),
        (("simulate", *CLOSED, "--active-sessions", "4"), "--active-sessions is for sessions, got 4 for 'closed:"),
        (("simulate", *CLOSED, "--max-wait-seconds", "4"), "--max-wait-seconds is for sessions, got 4 for 'closed:"),
        (
            ("workload", "closed:requests=3"),
            "closed must have a concurrency, in its text or as --concurrency, got none",
        ),
        (("workload", "closed:concurrency=3"), "closed must have requests, so that it ends"),
        (("simulate", *ALL, "--policy", "plain", "--extrapolate"), "--extrapolate goes with --cost"),
        (("simulate", *ALL, "--policy", "plain", "--slo", "ttft"), "--slo must be NAME=SECONDS"),
        ((*LATER, "--workload", "poisson:requests=2"), "--workload goes with --cluster FILE or --cluster DEVICE"),
        ((*LATER, "--rate", "2"), "--rate goes with --workload"),
        ((*LATER, "--cluster", "h100"), "--cluster goes with --workload"),
        ((*SERVED, "--batch", "4"), f"--batch {UNDER_LOAD}"),
        ((*SERVED, "--tag", "code"), f"--tag {UNDER_LOAD}"),
        ((*SERVED, "--rate", "two"), "--rate must hold numbers with commas between, got 'two'"),
        ((*SERVED[:3], *SERVED[5:]), "--workload goes with --prompts FILE, those of the recording"),
        (("workload", "constant:requests=3", "--rate", "0"), "--rate must be in [1e-9, 1e9], got 0.0"),
        (("workload", FEW, "--horizon-seconds", "-1"), "--horizon-seconds must be in [1e-9, 1e9], got -1.0"),
        (("workload", f"{FEW},prompt=1,output=1", "--lengths-from", "x"), "--lengths-from must be left out: no len"),
        (("metrics", "."), ": run: must be the folder of a serving run, got 'a folder without meta.json'"),
        (("metrics", "run", "run"), "runs of one setting must differ in their seed, got seeds [0, 0]"),
        (("metrics", "run", "--slo", "ttft=0"), "--slo ttft must be > 0 and finite, got 0.0"),
        (("metrics", "run", "--slo", "ttft=1,ttft=2"), TWICE),
        (("metrics", "run", "--slo", "ttft=1", "--slo", "ttft=2"), TWICE),
        (("metrics", "run", "--slo", "chat:ttft=1", "--slo", "chat:ttft=2"), "--slo chat: ttft is given twice"),
        (("metrics", "run", "--slo", "ttft=200"), "--slo ttft must say its unit above 10: 200ms or 200s, got 200"),
        (
            ("metrics", "run", "--slo", "ttft=200 ms"),
            "--slo ttft must have seconds as its bound, as in 0.2 or 200ms, got",
        ),
        (("metrics", "run", "--slo", "chat:ttft"), "--slo chat: must be NAME=SECONDS, got 'ttft'"),
        (("metrics", "run", "--slo", ":ttft=1"), "--slo must be [CLASS:]NAME=SECONDS,..., got ':ttft=1'"),
        (
            ("metrics", "run", "--slo", "ttft=1", "--slo", "ttft:e2e=1"),
            "--slo cannot promise ttft to all where a class has that name, got ttft as both",
        ),
    ],
)
def test_what_will_not_do_is_one_line(tmp_path, args, said):
    if "run" in args:
        write_serving(worked_log(), tmp_path / "run")
    assert said in refused(*args)


def test_a_run_to_which_no_request_came_has_json(tmp_path):
    row = {"arrives_s": 9.0, "prompt_tokens": 10, "output_tokens": 4}
    load = write(tmp_path, json.dumps(row) + "\n", "load.jsonl")
    told = done("simulate", *ALL[2:], "--workload", load, "--policy", "plain", "--horizon-seconds", "5", "--json", "-")
    assert [run["requests"] for run in json.loads(told)["rows"][0]["runs"]] == [0]
