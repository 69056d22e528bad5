"""`paceline run --rollouts`: what it prints and writes of a tree of answers, and what it refuses."""

import json
from pathlib import Path

import pytest

from ..command_line import done, paceline, refused

pytestmark = pytest.mark.usefixtures("pool_loaded_once")

SAMPLED = ("--sampling", "coupled", "--temperature", 0.9, "--seed", 3)


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "r0", "tag": "sums", "prompt": "Q: one"}\n', encoding="utf-8")
    return path


def ran(prompts, *options):
    return ("run", "--prompts", prompts, "--max-new-tokens", 6, *SAMPLED, *options)


def test_outputs_tell_the_tree(prompts, tmp_path):
    told = ran(prompts, "--rollouts", "2@0/2@1", "--policy", "draft:2/target", "--batch", 3)
    shown = json.loads(done(*told, "--json", "-"))
    assert shown["meta"]["rollouts"] == "2@0/2@1"
    rows = shown["outputs"]
    tree = [(row["request_id"], row["parent"], row["depth"]) for row in rows]
    assert tree == [("r0", "", 0), ("r0.1", "r0", 0), ("r0.2", "r0", 1), ("r0.1.1", "r0.1", 1)]
    answers = {row["request_id"]: row["tokens"] for row in rows}
    for row in rows:
        if row["parent"]:
            assert row["tokens"][: row["depth"]] == answers[row["parent"]][: row["depth"]]
    assert len(rows[0]["tokens"]) <= 6
    printed = done(*told)
    assert "--- r0 (sums)\n" in printed
    assert "--- r0.1.1 (sums), leaves r0.1 after 1 token\n" in printed
    assert "4 requests" in printed


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--rollouts", "0@0"), "--rollouts must have at least 1 path at each depth, got 0@0"),
        (("--rollouts", "2@3/2@3"), "--rollouts must have ascending depths in [0, 2,147,483,647], got 2@3/2@3"),
        (("--rollouts", "2@6"), "--rollouts depths must be < 6, the --max-new-tokens of an answer, got 6"),
        (("--rollouts", "four"), "--rollouts must be N@DEPTH, others behind a slash, as 4@0/2@32, got 'four'"),
        (("--rollouts", "2@0", "--policy", "typical"), "--quality must be False with --rollouts"),
    ],
)
def test_what_cannot_be_is_refused(prompts, options, told):
    assert told in refused(*ran(prompts, *options))


def test_greedy_rollouts_are_refused(prompts):
    told = refused("run", "--prompts", prompts, "--rollouts", "2@0")
    assert "--rollouts must be sampled (--sampling coupled or rejection)" in told


def test_a_path_that_cannot_start_is_said_and_the_exit_code_tells(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": "long", "prompt": "Q: one"}, {"id": "two", "prompt": "Q: two and two"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # Every path but those that branch too late is answered: a stop string ends all of them at once.
    ends = [word for letter in "etaoinshr \n" for word in ("--stop", letter)]
    found = paceline("run", "--prompts", path, "--max-new-tokens", 30, *SAMPLED, "--rollouts", "2@0/2@29", *ends)
    assert found.code == 1
    assert "paceline: failed: request long.2: must leave long after 29 tokens of answer, which ended after" in found.err
    assert "4 of 8 requests failed" in found.err


def test_members_that_share_no_attention_are_named_where_it_is_asked_for(prompts):
    asked = ("--rollouts", "3@0", "--batch", 3, "--prefix-cache", 8, "--shared-attention", "on")
    printed = done(*ran(prompts, *asked, "--forward", "modules"))
    assert "attention over what rows share is computed row by row in draft (modules), mid (modules)" in printed
    assert "row by row" not in done(*ran(prompts, *asked, "--forward", "fused"))
    told = refused(*ran(prompts, "--shared-attention", "off"))
    assert told == "--shared-attention goes with --prefix-cache, got off without one"
