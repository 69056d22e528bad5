"""`paceline run`: what it writes, and how it ends."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.cli.options import dead_share_of, limit_bytes
from paceline.policies.fixed import Plain
from paceline.studies.setting import named_policy

from ..command_line import done, paceline, refused

pytestmark = pytest.mark.usefixtures("pool_loaded_once")

PROMPTS = ("Q: one", "Q: two and two", "Q: three")


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"r{index}", "tag": "sums", "prompt": text} for index, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ran(prompts, *options):
    return ("run", "--prompts", prompts, "--max-new-tokens", 6, *options)


def test_a_first_short_try_may_name_tags_beyond_the_limit(prompts):
    with prompts.open("a", encoding="utf-8") as file:
        file.write('{"id": "last", "tag": "rare", "prompt": "Q: four"}\n')
    shown = json.loads(done(*ran(prompts, "--limit", 1, "--policy", "per-tag,default=plain,rare=plain", "--json", "-")))
    assert [row["request_id"] for row in shown["outputs"]] == ["r0"]


@pytest.mark.parametrize(
    "options",
    [
        ("--cache", "mask", "--dead-share", 0.2, "--batch", 3),
        ("--forward", "modules", "--batch", 3),
        ("--kv-limit-mib", 3, "--batch", 3),
    ],
)
def test_how_it_runs_does_not_change_the_text(prompts, options):
    plain = json.loads(done(*ran(prompts, "--json", "-")))
    other = json.loads(done(*ran(prompts, "--json", "-", *options)))
    assert [row["tokens"] for row in other["outputs"]] == [row["tokens"] for row in plain["outputs"]]


def test_debug_says_how_models_run_and_does_not_change_the_text(prompts):
    plain = json.loads(done(*ran(prompts, "--json", "-")))
    other = paceline(*ran(prompts, "--json", "-", "--debug", "--policy", "draft:2/mid:3/target"))
    assert other.code == 0
    assert [row["tokens"] for row in json.loads(other.out)["outputs"]] == [row["tokens"] for row in plain["outputs"]]
    first, *products = other.err.splitlines()
    assert re.fullmatch(r"paceline: forwards of draft: \w+, mid: \w+, slim: \w+, target: \w+", first)
    assert all(re.match(r"paceline: product of float32 \d+x\d+: \S+ from 1\b", line) for line in products)


def test_one_product_may_be_asked_for(prompts):
    ran_by = paceline(*ran(prompts, "--json", "-", "--debug", "--limit", 1, "--forward", "fused:plain-rows"))
    assert ran_by.code == 0
    assert "product of every weight: plain-rows from 1 tokens" in ran_by.err


def test_more_threads_than_processors_are_refused(prompts):
    line = refused(*ran(prompts, "--threads", 1024))
    assert re.fullmatch(r"--threads must be <= \d+, as there (is|are) \d+ processors? to run on, got 1024", line)


def test_rejection_sampling_is_reproducible(prompts):
    options = ("--sampling", "rejection", "--temperature", 0.9, "--seed", 3, "--top-p", 0.9, "--top-k", 40)
    one, two = (done(*ran(prompts, "--policy", "draft:3/target", *options, "--json", "-")) for _ in range(2))
    texts = [[row["tokens"] for row in json.loads(printed)["outputs"]] for printed in (one, two)]
    assert texts[0] == texts[1]


def test_a_stop_string_ends_an_answer(prompts):
    free = json.loads(done(*ran(prompts, "--json", "-")))["outputs"][0]
    stop = free["text"][2:4]
    cut = json.loads(done(*ran(prompts, "--json", "-", "--stop", stop)))["outputs"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["text"] == free["text"][: free["text"].find(stop)]
    assert len(cut["tokens"]) <= len(free["tokens"])


def test_a_request_that_fails_leaves_the_others_and_exits_with_one(prompts, tmp_path):
    """So little memory that the longer prompts fit not even alone."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": "short", "prompt": "Q"}, {"id": "long", "prompt": "word " * 100}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    result = paceline(*ran(path, "--out", "out", "--kv-limit-mib", 1.5))
    assert result.code == 1
    assert "paceline: failed: request long: " in result.err
    assert "1 of 2 requests failed" in result.err
    assert "Traceback" not in result.err
    lines = (tmp_path / "out" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["finish_reason"] for line in lines] == ["length", "error"]


def test_an_interrupt_keeps_what_is_finished(prompts, tmp_path, monkeypatch):
    class Interrupted(Plain):
        calls = 0

        def decide(self, seen):
            Interrupted.calls += 1
            if Interrupted.calls == 9:
                raise KeyboardInterrupt
            return super().decide(seen)

    monkeypatch.setattr("paceline.studies.decode.named_policy", lambda _: named_policy(Interrupted))
    result = paceline(*ran(prompts, "--out", "out"))
    assert result.code == 130
    told = r"paceline: error: interrupted: in Interrupted at \S*test_run\.py:\d+; 1 of 3 requests ended and are kept\n"
    assert re.fullmatch(told, result.err)
    assert len((tmp_path / "out" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stop", ""), "--stop must not be empty"),
        (("--stop", "\udcff"), "--stop must be UTF-8"),
        (("--policy", "plain", "--policy", "ngram", "--out", "o"), "--out goes with one --policy, got plain, ngram"),
        (("--policy", "plain", "--policy", "draft:2/large"), "large"),
        (("--out", "prompts.jsonl/x"), "--out prompts.jsonl/x: cannot be made in "),
        (("--out", ""), "--out must name a new folder"),
        (("--json", ""), "--json must name a file"),
        (("--out", "same", "--json", "same"), "--json must be a file of its own, got 'same'"),
        (("--top-k", 3), "greedy takes none"),
        (("--kv-limit-mib", 0), "--kv-limit-mib must be > 0"),
        (("--kv-limit-mib", "nan"), "--kv-limit-mib must be > 0"),
        (("--kv-limit-mib", "much"), "--kv-limit-mib must be > 0 and finite, got much"),
        (("--kv-limit-mib", "cpu=0"), "--kv-limit-mib must be > 0 and finite, got 0"),
        (("--kv-limit-mib", "3", "--kv-limit-mib", "4"), "--kv-limit-mib must be NAME=MIB, got '3'"),
        (("--kv-limit-mib", "cuda:7=3"), "--kv-limit-mib must name devices of the pool (cpu), got 'cuda:7'"),
        (("--device", "cpu"), "--device must be NAME=DEVICE, got 'cpu'"),
        (("--device", "slim=cpu"), "as a submodel is where its model is, got 'slim'"),
        (("--device", "large=cpu"), "--device must name members with weights of their own (draft, mid, target)"),
        (("--device", "target=cuda:77"), "--device of target must be a device of this machine (cpu"),
        (("--dead-share", 0.5), "--dead-share belongs to --cache mask"),
        (("--cache", "mask", "--dead-share", 0), "--dead-share must be in (0, 1]"),
        (("--max-new-tokens", 100_000), "must fit into the pool's context of 512 tokens"),
        (("--policy", "draft:2/large"), "large"),
    ],
)
def test_bad_options_are_one_line(prompts, options, told):
    assert told in refused(*ran(prompts, *options))


def test_a_batch_larger_than_the_machine_is_refused_before_it_runs(prompts, monkeypatch):
    monkeypatch.setattr("paceline.runtime.decode.total_bytes", lambda device: 10_000)
    assert "batch must fit into memory: 3 requests" in refused(*ran(prompts, "--batch", 8))


def test_prompts_longer_than_the_context(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"id": "long", "prompt": "many words " * 400}) + "\n", encoding="utf-8")
    assert refused(*ran(path)).startswith("request long: prompt of ")


def test_the_memory_options_by_themselves():
    assert limit_bytes(None) is None
    assert limit_bytes(["2"]) == 2 * 2**20
    assert limit_bytes(["cpu=2", "cuda:0=0.5"]) == {"cpu": 2 * 2**20, "cuda:0": 2**19}
    assert dead_share_of("slots", None) == 0.5


POLICY_THAT_INTERRUPTS = """
import os, signal, threading
from paceline.policies import Verify

class Interrupts:
    def __init__(self, pool):
        self.target, self.calls = pool.target, 0

    def decide(self, seen):
        self.calls += 1
        if self.calls == 9:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            os.kill(os.getpid(), signal.SIGINT)
        return Verify(self.target)

    def learn(self, outcome):
        pass
"""


def test_a_second_ctrl_c_is_ignored_while_the_finished_are_written(prompts, tmp_path):
    (tmp_path / "interrupts.py").write_text(POLICY_THAT_INTERRUPTS, encoding="utf-8")
    command = [*map(str, ran(prompts, "--out", "out")), "--policy", "interrupts.py:Interrupts"]
    process = subprocess.run(
        [sys.executable, "-m", "paceline", *command], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert process.returncode == 130
    # What precedes it is progress: whether loading takes ten seconds is the machine's affair.
    told = "interrupted: in interrupts.py:Interrupts at interrupts.py:1[34]; 1 of 3 requests ended and are kept"
    assert re.fullmatch(f"paceline: error: {told}", process.stderr.splitlines()[-1])
    assert (tmp_path / "out" / "outputs.jsonl").is_file()


def test_fewer_requests_than_the_batch_are_told(prompts):
    told = "--batch 32: the run has 3 requests, so at most 3 run together"
    assert told in done(*ran(prompts, "--batch", 32))
    assert "run together" not in done(*ran(prompts, "--batch", 3))
