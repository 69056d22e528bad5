"""`paceline prompts`, and answers that `run` says are right."""

import json

import pytest

from ...cli.command_line import done, paceline, refused
from .sandboxes import needs_sandbox
from .test_forms import GSM8K, TURNS, written


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_files_become_prompts(tmp_path):
    written(tmp_path, "test.jsonl", GSM8K, GSM8K, GSM8K)
    written(tmp_path, "question.jsonl", TURNS)
    assert done("prompts", "gsm8k", "test.jsonl", "--out", "p.jsonl", "--limit", 2).split() == (
        ["p.jsonl:", "2", "prompts,", "2", "with", "an", "answer", "to", "be", "checked"]
    )
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert rows[1] == {
        "id": "gsm8k-0002", "tag": "gsm8k", "prompt": "How many?", "answer": "1,004", "check": "number"
    }  # fmt: skip
    assert "1 prompt, 0 with" in done("prompts", "questions", "question.jsonl", "--out", "q.jsonl")


def test_what_is_wrong_leaves_what_was_there(tmp_path):
    written(tmp_path, "question.jsonl", TURNS)
    (tmp_path / "p.jsonl").write_text("old")
    assert "must be one of gsm8k, mgsm, humaneval, questions" in refused(
        "prompts", "mmlu", "question.jsonl", "--out", "p.jsonl"
    )
    assert "question.jsonl: line 1, question: " in refused("prompts", "gsm8k", "question.jsonl", "--out", "p.jsonl")
    twice = ("prompts", "questions", "question.jsonl", "question.jsonl", "--out", "p.jsonl")
    assert "must name each question once, got 81 twice" in refused(*twice)
    assert (tmp_path / "p.jsonl").read_text() == "old"


def test_a_run_counts_right_answers(tmp_path):
    rows = [{"id": f"r{number}", "tag": f"t{number % 2}", "prompt": "1 2 3"} for number in range(3)]
    written(tmp_path, "p.jsonl", *rows)
    asked = ("run", "--prompts", "p.jsonl", "--max-new-tokens", 4)
    ran = json.loads(done(*asked, "--json", "-"))
    text = ran["outputs"][0]["text"]
    assert [row["right"] for row in ran["outputs"]] == [None] * 3
    expected = [{"answer": text}, {"answer": "x" + text}, {"answer": text, "check": "text"}]
    written(tmp_path, "p.jsonl", *(row | more for row, more in zip(rows, expected, strict=True)))
    assert [row["right"] for row in json.loads(done(*asked, "--json", "-"))["outputs"]] == [True, False, True]
    assert "right answers: 2 of 3 (t0 2 of 2, t1 0 of 1)" in done(*asked)


@pytest.mark.parametrize(
    "how", [pytest.param(("--run-tests",), marks=needs_sandbox), ("--run-tests", "unsandboxed")], ids=str
)
def test_a_run_runs_tests_of_code_where_that_is_asked_for(tmp_path, how):
    tests = {"entry_point": "f", "code": "def f(): return 1\n#"}  # whatever is written is a comment
    rows = [{"id": f"r{number}", "prompt": "1 2 3", "tests": tests | {"check": f"f() / {number}"}} for number in (0, 1)]
    written(tmp_path, "p.jsonl", *rows)
    asked = ("run", "--prompts", "p.jsonl", "--max-new-tokens", 1)
    assert "2 answers not scored: run --run-tests runs a model's code" in done(*asked)
    ran = json.loads(done(*asked, *how, "--json", "-"))
    assert [(row["right"], row["failure"]) for row in ran["outputs"]] == [(False, "failed"), (True, None)]
    assert ran["scores"] == {
        "right": 1, "total": 2, "not_run": 0, "failures": {"failed": 1},
        "by_tag": {"untagged": {"right": 1, "total": 2}},
    }  # fmt: skip


def test_tests_are_not_asked_for_where_there_are_none(tmp_path):
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "1 2 3", "answer": "4"})
    asked = ("run", "--prompts", "p.jsonl", "--run-tests")
    assert "--run-tests needs prompts with tests of code, got none" in refused(*asked)


def test_tests_run_without_a_sandbox_only_where_that_is_said(tmp_path, monkeypatch):
    tests = {"entry_point": "f", "code": "#", "check": "f()"}
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "1 2 3", "tests": tests})
    monkeypatch.setattr("paceline.runtime.sandbox.shutil.which", lambda _: None)
    told = refused("run", "--prompts", "p.jsonl", "--run-tests")
    assert "apt install bubblewrap), found no bwrap; --run-tests unsandboxed runs what the model wrote" in told
    told = refused("run", "unsandboxed", "--prompts", "p.jsonl")
    assert told == "unsandboxed stands after --run-tests, got it without"
    assert "unsandboxed" in refused("run", "--run-tests", "boxed", "--prompts", "p.jsonl")


def test_an_interrupt_while_tests_run_keeps_the_answers(tmp_path, monkeypatch):
    def interrupted(tests, answer, limits):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.runtime.tasks.failure_of", interrupted)
    tests = {"entry_point": "f", "code": "#", "check": "f()"}
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "1 2 3", "tests": tests})
    ran = paceline("run", "--prompts", "p.jsonl", "--max-new-tokens", 2, "--run-tests", "unsandboxed", "--out", "kept")
    assert (ran.code, ran.err) == (0, "paceline: interrupted: the answers are kept, their quality is not measured\n")
    (row,) = (json.loads(line) for line in (tmp_path / "kept" / "outputs.jsonl").read_text().splitlines())
    assert row["tokens"]
    assert row["right"] is None


def test_several_policies_stand_in_one_table_with_right_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")  # so that no heading is broken
    written(tmp_path, "p.jsonl", {"id": "a", "prompt": "1 2 3"})
    plain = json.loads(done("run", "--prompts", "p.jsonl", "--max-new-tokens", 4, "--json", "-"))
    text = plain["outputs"][0]["text"]
    written(
        tmp_path, "p.jsonl", {"id": "a", "prompt": "1 2 3", "answer": text}, {"id": "b", "prompt": "4", "answer": "x"}
    )
    several = ("--policy", "plain", "--policy", "draft:2/target", "--policy", "cascade")
    asked = ("run", "--prompts", "p.jsonl", "--max-new-tokens", 4, *several)
    shown = done(*asked)
    assert "2 prompts, each policy in turn; medians of 3 rounds" in shown
    assert "least to most" in shown
    assert "over plain" in shown
    assert "1.00x" in shown
    assert "plain: right answers: 1 of 2" in shown
    assert "draft:2/target: right answers: 1 of 2" in shown
    assert "what was refused, and the texts beside the target's own" in shown
    said = json.loads(done(*asked, "--json", "-", "--repeats", 2))
    assert [len(speeds) for speeds in said["tokens_per_s"]] == [3, 3]
    assert min(speed for speeds in said["tokens_per_s"] for speed in speeds) > 0
    found = said["policies"]
    for policy, first in zip(found, said["tokens_per_s"][0], strict=True):
        assert policy["summary"]["output_tokens_per_s"] == pytest.approx(first)
    once = done(*asked, "--repeats", 1)
    assert "each policy in turn\n" in once.replace(" \n", "\n")
    assert "--repeats goes with several --policy, got plain" in refused(*asked[:5], "--repeats", 2)
    assert [one["meta"]["policy"] for one in found] == ["plain", "draft:2/target", "cascade"]
    assert [one["scores"]["total"] for one in found] == [2, 2, 2]
    assert found[1]["outputs"] == found[0]["outputs"]
    assert found[2]["summary"]["quality"]["answers_own"] == 1
