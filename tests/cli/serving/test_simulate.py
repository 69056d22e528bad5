"""`paceline simulate` and `paceline compare --workload`: printed, as JSON, refused, interrupted."""

import json
import subprocess
import sys

import pytest

from ..command_line import done, paceline, refused

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


def test_what_is_printed_is_what_the_folder_holds(tmp_path):
    asked = ("simulate", *ALL, "--policy", "draft:4/target", "--slo", "ttft=1,tpot=0.001", "--out", tmp_path / "run")
    printed = done(*asked)
    assert done("metrics", tmp_path / "run", "--slo", "ttft=1,tpot=0.001") == printed
    assert "requests" in printed
    assert refused(*asked).endswith("exists already; a run is never overwritten")


def test_promises_by_class(tmp_path):
    asked = ("--cluster", "h100", "--slo", "chat:ttft=1,tpot=0.001", "--slo", "tpot=1")
    load = ("--workload", f"{LOAD},slo=chat")
    printed = done("simulate", *load, *asked, "--policy", "plain", "--out", tmp_path / "run")
    assert "SLO chat: ttft 1 s, tpot 0.001 s; others: tpot 1 s" in printed.replace("\n", " ")
    assert "classes of requests" in printed
    assert done("metrics", tmp_path / "run", *asked[2:]) == printed
    assert "classes of requests" in done("compare", *load, *asked, "--policy", "plain", "--seeds", 2)
    told = refused("compare", *load, *asked, "--slo", "batch:e2e=1", "--policy", "plain")
    assert told.endswith("--slo must name a class of the requests (chat), got 'batch'")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("compare", "--rate", "4"), "--rate goes with --workload"),
        (("compare", "--horizon-seconds", "4"), "--horizon-seconds goes with --workload"),
        (("compare", "--workload", LOAD), "--workload goes with --cluster FILE"),
        (("compare", *ALL, "--rate", "1,0"), "--rate must be in [1e-9, 1e9], got 0.0"),
        (("compare", *ALL, "--rate", "1,x"), "--rate must hold numbers"),
        (("compare", *ALL, "--batch", "4"), "--batch has no part in --workload"),
        (("compare", *ALL, "--by-tag"), "--by-tag has no part in --workload"),
        (("compare", *ALL, "--sweep", "draft:1..2/target"), "--sweep has no part in --workload"),
        (("simulate", *ALL), "--policy must be given: replica h100 of h100 has none"),
        (("simulate", *ALL, "--policy", "plain", "--policy", "ngram"), "--policy must be given once"),
        (("simulate", *ALL, "--policy", "plain", "--rate", "4"), "--rate must be given once"),
        (("simulate", *ALL, "--policy", "plain", "--tensor-parallel", "2"), "--tensor-parallel goes with --cost"),
        (("simulate", *ALL, "--policy", "plain", "--slo", "ttft"), "--slo must be NAME=SECONDS"),
    ],
)
def test_what_will_not_do_is_one_line(args, said):
    assert refused(*args).startswith(said)


def test_what_was_asked_of_one_run_alone_is_said_of_it(tmp_path):
    for name, asked in {"slow": ("--scale", "target=2", "--limit", "20"), "own": ()}.items():
        done("simulate", *ALL, "--policy", "plain", *asked, "--out", tmp_path / name)
    printed = done("metrics", tmp_path / "slow", tmp_path / "own").replace("\n", " ")
    assert f"{tmp_path / 'slow'}: target x2" in printed
    assert f"{tmp_path / 'slow'}: limited to the first 20 arrivals" in printed
    assert f"{tmp_path / 'own'}: target x2" not in printed


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_ctrl_c_keeps_what_was_simulated(command, tmp_path):
    (tmp_path / "mine.py").write_text(INTERRUPTS)
    kept = ("--out", "run") if command == "simulate" else ("--log", "run", "--policy", "plain", "--seeds", "2")
    process = subprocess.run(
        [sys.executable, "-m", "paceline", command, *ALL, *kept, "--policy", "mine.py:Interrupts"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert process.returncode == 130, process.stderr
    last = process.stderr.splitlines()[-1]
    if command == "simulate":
        assert last.startswith("paceline: error: interrupted: ")
        assert last.endswith(" requests finished and are kept")
        assert "(interrupted)" in done("metrics", tmp_path / "run")
    else:
        assert last == "paceline: error: interrupted: 1 row more was asked for"
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["plain-seed0", "plain-seed1"]


def test_a_row_that_is_wrong_keeps_what_came_before_it(tmp_path):
    rows = [{"request_id": str(n), "arrives_s": n, "prompt_tokens": 9, "output_tokens": 4} for n in range(3)]
    load = tmp_path / "load.jsonl"
    load.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {**rows[2], "output_tokens": 0})))
    ran = paceline("simulate", "--workload", load, "--cluster", "h100", "--policy", "plain", "--out", tmp_path / "run")
    assert ran.code == 2
    assert ran.err.startswith(f"paceline: error: {load}: line 4")
    assert f"{tmp_path / 'run'}: partial, stopped at 2.000 s (error in the workload)" in ran.out.replace("\n", " ")
    assert done("metrics", tmp_path / "run") == ran.out
