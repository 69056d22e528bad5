"""Options of working ahead and of token trees: `--devices` of compare, `--overlap` of run and agree, `--trees`."""

import json

import pytest
from paceline.runtime.pools.pool import ModelPool

from ...tiny_models import random_prompts, tiny_pool_of_four
from ..command_line import done, refused

AHEAD = ("--policy", "pearl,window=2", "--policy", "pipespec,window=2")


@pytest.fixture
def prompts(monkeypatch, tmp_path):
    """Every pool that is loaded is the tiny one."""
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: tiny_pool_of_four()))
    lines = [json.dumps({"id": one.request_id, "prompt": one.text}) for one in random_prompts(3, seed=2)]
    (tmp_path / "prompts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return "--prompts", "prompts.jsonl", "--max-new-tokens", 8


def compared(trace, *options):
    return json.loads(done("compare", "--trace", trace, "--policy", "pearl,window=2", *options, "--json", "-"))


def test_devices_of_their_own_make_working_ahead_quicker_and_change_no_step(trace):
    one, each = (compared(trace, "--devices", devices) for devices in ("one", "each"))
    assert (one["meta"]["devices"], each["meta"]["devices"]) == ("one", "each")
    before, after = (found["policies"][0] for found in (one, each))
    assert after["output_tokens_per_s"] > before["output_tokens_per_s"]
    for name in ("acceptance_length", "wasted_tokens", "rejection_rate", "accepted_histogram"):
        assert after[name] == before[name]
    named = compared(trace, "--devices", "draft=a,target=b")
    assert named["meta"]["devices"] == "draft=a,target=b"
    assert named["policies"] == each["policies"]


def test_devices_where_nobody_works_ahead_are_refused(trace):
    asked = ("--policy", "plain", "--policy", "draft:2/target", "--devices", "each")
    told = "--devices is for policies that work ahead, such as pearl, got 'each' for plain nor draft:2/target"
    assert told in refused("compare", "--trace", trace, *asked)


@pytest.mark.parametrize("policy", ["pearl,window=2", "pipespec,window=2"])
def test_threads_and_turns_write_the_same(prompts, policy):
    shown = [
        json.loads(done("run", *prompts, "--policy", policy, "--overlap", overlap, "--json", "-"))
        for overlap in ("threads", "turns")
    ]
    assert [found["meta"]["overlap"]["used"] for found in shown] == ["threads", "turns"]
    texts = [[row["tokens"] for row in found["outputs"]] for found in shown]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("overlap", ["threads", "turns"])
def test_both_worlds_agree_however_members_work_at_the_same_time(prompts, overlap):
    found = json.loads(done("agree", *prompts, *AHEAD, "--batch", 2, "--overlap", overlap, "--json", "-"))
    assert found["agree"] is True
    assert found["meta"]["overlap"] == overlap
    assert [row["ahead"] for row in found["policies"]] == [overlap, overlap]
    assert [row["num_requests"] for row in found["policies"]] == [3, 3]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--overlap", "both"), "Invalid value for '--overlap'"),
        (("--overlap", "threads", "--kv-limit-mib", 3), "--overlap cannot be threads: "),
        (
            ("--overlap", "threads", "--sampling", "rejection", "--temperature", 1, "--seed", 1),
            "--overlap cannot be threads: ",
        ),
    ],
)
def test_threads_that_would_race_are_refused(prompts, options, told):
    assert told in refused("run", *prompts, "--policy", "pearl,window=2", *options)


def test_a_policy_that_never_works_ahead_is_not_told_how(prompts):
    told = "--overlap is for policies that work ahead, such as pearl, got 'turns' for "
    for command, policies in (("run", ("plain",)), ("agree", ("plain", "draft:2/target"))):
        asked = [word for name in policies for word in ("--policy", name)]
        assert told + " nor ".join(policies) in refused(command, *prompts, *asked, "--overlap", "turns")


def test_one_that_works_ahead_among_others_is_enough(prompts):
    text = done("agree", *prompts, "--policy", "plain", *AHEAD[:2], "--limit", 1, "--overlap", "turns")
    assert "members of pearl,window=2 worked at the same time in turns" in text


def test_recorded_trees_replay(prompts, tmp_path):
    shallow = ("--reach", 4, "--run", 4, "--no-costs")
    done("record", "made.trace", *prompts, *shallow, "--trees", "draft:2x1", "--trees", "mid:beam=2,depth=2")
    meta = json.loads((tmp_path / "made.trace" / "meta.json").read_text(encoding="utf-8"))
    assert [tree["model"] for tree in meta["closure"]["trees"]] == ["draft", "mid"]
    seconds = {name: {"intercept_s": 0.01, "per_new_token_s": 0.001} for name in ("draft", "mid", "slim", "target")}
    (tmp_path / "cost.json").write_text(json.dumps(seconds))
    trees = ("--policy", "tree,shape=2x1", "--policy", "tree-dynamic,draft=mid,beams=2,depth=2,tokens=4")
    found = json.loads(done("compare", "--trace", "made.trace", "--cost", "cost.json", *trees, "--json", "-"))
    for row in found["policies"]:
        assert row["levels"][-1]["trees"] > 0
        assert row["draft_acceptance_rate"] is None
        assert 0 <= row["rejection_rate"] <= 1


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ("4x2", "--trees must be a member and a shape, as draft:4x2x1, got '4x2'"),
        ("draft:", "the shape of a tree "),
        ("draft:0x2", "widths of a tree must be >= 1, at least one, got (0, 2)"),
        ("draft:wide=3", "the shape of a tree "),
        ("large:2x1", "large"),
        ("target:2x1", "target"),
        ("ngram:2x1", "ngram"),
    ],
)
def test_trees_that_cannot_be_recorded_are_refused(prompts, tree, told, tmp_path):
    assert told in refused("record", "made.trace", *prompts, "--no-costs", "--trees", tree)
    assert not (tmp_path / "made.trace").exists()
