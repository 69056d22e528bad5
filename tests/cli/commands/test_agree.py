"""`paceline agree` on a pool of tiny random models."""

import json
from dataclasses import replace

import pytest
from paceline.runtime.pools.pool import ModelPool

from ...tiny_models import random_prompts, tiny_pool_of_four
from ..command_line import done, paceline, refused

COUPLED = ("--sampling", "coupled", "--temperature", "0.8", "--seed", "7")
CHAINS = ("--policy", "plain", "--policy", "draft:2/mid:3/target", "--policy", "adaptive,most=6", "--policy", "ngram")
META_KEYS = {
    "start",
    "pool",
    "trace",
    "closure",
    "near_ties",
    "dtype",
    "trunk_near_ties",
    "sampling",
    "requests",
    "max_new_tokens",
    "batch",
    "cache",
    "overlap",
    "prefix_cache",
}
POLICY_KEYS = {
    "policy",
    "num_requests",
    "num_steps",
    "num_ops",
    "num_tokens",
    "num_other_answers",
    "num_asked_tokens",
    "num_hit_tokens",
    "num_evicted_blocks",
    "difference",
    "num_replayed",
    "num_left",
    "ahead",
    "left",
    "near_ties",
}

POLICIES = '''
from pathlib import Path
from random import Random

from paceline.policies import Draft, Ratio, Verify


class Base:
    def __init__(self, pool):
        self.pool = pool

    def learn(self, outcome):
        pass


class ByTheClock(Base):
    def decide(self, seen):
        if seen.num_pending or seen.room < 1 or seen.load.now_s > 4:
            return Verify("target")
        return Draft("mid", 2)


class Coin(Base):
    """Tosses one that nobody gave a seed."""

    def __init__(self, pool):
        self.coin = Random()

    def decide(self, seen):
        if seen.num_pending or seen.room < 1 or self.coin.random() < 0.5:
            return Verify("target")
        return Draft("mid", 2)


class Interrupted(Base):
    """By the user, while the models run: theirs is the object that is made first."""

    def __init__(self, pool):
        self.first = not Path("made").exists()
        Path("made").touch()

    def decide(self, seen):
        if self.first:
            raise KeyboardInterrupt
        return Verify("target")


class Lossy(Base):
    def decide(self, seen):
        return Verify("target", Ratio(0.3)) if seen.num_pending else Draft("draft", 2)
'''


@pytest.fixture(autouse=True)
def prompts(monkeypatch, tmp_path):
    """Every pool that is loaded is the tiny one."""
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: tiny_pool_of_four()))
    write_prompts(tmp_path / "prompts.jsonl", random_prompts(4, seed=2))


def write_prompts(path, prompts):
    lines = [json.dumps({"id": one.request_id, "tag": one.tag, "prompt": one.text}) for one in prompts]
    path.write_text("".join(f"{line}\n" for line in lines))


def agree(*args):
    return ("agree", "--prompts", "prompts.jsonl", "--max-new-tokens", "12", *args)


@pytest.mark.parametrize(
    ("sampling", "batch", "cache"),
    [((), "1", "slots"), (COUPLED, "3", "slots"), ((), "3", "mask"), (COUPLED, "1", "mask")],
)
def test_both_worlds_agree(sampling, batch, cache):
    shape = ("--batch", batch, "--cache", cache, "--reach", "8")
    data = json.loads(done(*agree(*CHAINS, *sampling, *shape, "--json", "-")))
    assert set(data) == {"meta", "agree", "policies"}
    assert set(data["meta"]) == META_KEYS
    assert (data["meta"]["batch"], data["meta"]["cache"]) == (int(batch), cache)
    assert data["agree"] is True
    assert [row["policy"] for row in data["policies"]] == list(CHAINS[1::2])
    for row in data["policies"]:
        assert set(row) == POLICY_KEYS
        assert (row["num_requests"], row["num_other_answers"], row["difference"]) == (4, 0, None)
        assert row["num_tokens"] == data["policies"][0]["num_tokens"] > 12
        assert row["num_steps"] >= row["num_ops"] > 0


def test_the_reach_follows_the_chains():
    data = json.loads(done(*agree("--policy", "draft:8/slim:12/target", "--limit", "1", "--json", "-")))
    assert data["meta"]["closure"] == {"kind": "monotone", "reach": 20, "run": 20}


def test_nothing_is_left_behind(tmp_path):
    done(*agree("--policy", "plain", "--limit", "1"))
    assert [file.name for file in tmp_path.iterdir()] == ["prompts.jsonl"]


# -- a recording made before


def recorded(*args):
    done("record", "made.trace", "--prompts", "prompts.jsonl", "--max-new-tokens", "12", "--no-costs", *args)


def test_a_recording_made_before():
    recorded()
    made_now = json.loads(done(*agree(*CHAINS, "--json", "-")))
    data = json.loads(done(*agree(*CHAINS, "--trace", "made.trace", "--json", "-")))
    assert data["policies"] == made_now["policies"]
    fewer = json.loads(done(*agree(*CHAINS, "--trace", "made.trace", "--limit", "2", "--json", "-")))
    assert fewer["meta"]["requests"] == 2


def test_other_models_are_a_difference(monkeypatch, tmp_path):
    """Pools of one shape whose weights are not those of the recording: nothing but the comparison can tell."""
    recorded()
    monkeypatch.setattr(
        ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: tiny_pool_of_four(seed=2))
    )
    ran = paceline(*agree("--policy", "draft:2/target", "--trace", "made.trace"))
    assert (ran.code, ran.err) == (1, "")
    assert "policies that differ: 1 of 1" in ran.out.splitlines()[-1]
    assert ran.out.splitlines()[-2].startswith("the recording holds ")
    for words in ("draft:2/target: request r0, step ", "  simulator ", "  runtime commits next  "):
        assert words in ran.out
    ran = paceline(*agree("--policy", "draft:2/target", "--trace", "made.trace", "--json", "out.json"))
    assert (ran.code, ran.out, ran.err) == (1, "", "")
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["agree"] is False
    difference = data["policies"][0]["difference"]
    assert set(difference) == {"request_id", "step", "num_committed", "committed", "replayed", "ran"}
    assert set(difference["ran"]) == {"did", "tokens"}
    assert difference["ran"] != difference["replayed"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (COUPLED, "made.trace: sampling: must be the one asked for, mode coupled, temperature 0.8, seed 7, got"),
        (("--max-new-tokens", "9"), "requests, r0, max_new_tokens: must be the one asked for, 9, got 12"),
        (("--prompts", "more.jsonl"), "made.trace: requests, r4: must be recorded for every prompt, got None"),
        (
            ("--prompts", "other.jsonl"),
            "made.trace: requests, r0, prompt: must be the tokens of the prompt as it stands, without --chat, got",
        ),
        (("--reach", "9"), "--closure, --reach and --run belong to a recording made now; --trace has its own"),
        (("--trace", "missing.trace"), "missing.trace: trace: must be a directory, got 'nothing there'"),
    ],
)
def test_a_recording_of_something_else(tmp_path, args, told):
    recorded()
    write_prompts(tmp_path / "more.jsonl", random_prompts(5, seed=2))
    write_prompts(tmp_path / "other.jsonl", random_prompts(4, seed=3))
    assert told in refused(*agree("--policy", "plain", "--trace", "made.trace", *args))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer_sha256": "1" * 64}, "tokenizer_sha256: must be that of pool tiny, 111111111111, got '00000"),
        ({"eos_token_ids": (3, 0)}, "eos_token_ids: must be [0, 3], got [0]"),
        ({"members": tiny_pool_of_four().members[1:]}, "models: must be those of pool tiny, draft ("),
    ],
)
def test_a_recording_of_another_pool(monkeypatch, change, told):
    recorded()
    pool = replace(tiny_pool_of_four(), **change)
    monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: pool))
    assert told in refused(*agree("--policy", "plain", "--trace", "made.trace"))


# -- policies that cannot be compared, or do differ


def test_a_policy_that_leaves_the_recording():
    line = refused(*agree("--policy", "plain", "--policy", "draft:4/mid:4/target", "--reach", "2"))
    assert line.startswith("policy draft:4/mid:4/target leaves the recording (request r")
    assert "--closure monotone --reach 2 --run 2; record deeper" in line


def test_a_tree_that_leaves_the_recording():
    recorded("--trees", "draft:2x1")
    line = refused(*agree("--policy", "tree,shape=3", "--trace", "made.trace"))
    assert line.endswith("it was recorded with --trees draft:2x1; record with trees as wide and as deep")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_lossy_policy_is_compared_up_to_where_it_leaves_the_record(tmp_path, batch):
    (tmp_path / "mine.py").write_text(POLICIES)
    args = ("--policy", "plain", "--policy", "mine.py:Lossy", "--batch", str(batch))
    text = done(*agree(*args))
    assert "mine.py:Lossy: left the record at step " in text
    assert text.splitlines()[-1].endswith("no difference")
    plain, lossy = json.loads(done(*agree(*args, "--json", "-")))["policies"]
    assert (plain["num_left"], plain["left"], plain["num_replayed"]) == (0, None, plain["num_steps"])
    assert set(lossy["left"]) == {"request_id", "step"}
    assert 1 <= lossy["num_left"] <= lossy["num_requests"] == 4
    assert 0 < lossy["num_steps"] < lossy["num_replayed"]
    assert lossy["difference"] is None


def test_a_full_recording_holds_what_a_lossy_policy_does(tmp_path):
    (tmp_path / "mine.py").write_text(POLICIES)
    args = ("--policy", "mine.py:Lossy", "--max-new-tokens", "5", "--closure", "full", "--reach", "5")
    (row,) = json.loads(done(*agree(*args, "--json", "-")))["policies"]
    assert (row["num_left"], row["left"], row["num_replayed"]) == (0, None, row["num_steps"])


def test_a_lossy_policy_that_differs_before_it_leaves_the_record(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(POLICIES)
    recorded()
    monkeypatch.setattr(
        ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: tiny_pool_of_four(seed=2))
    )
    ran = paceline(*agree("--policy", "mine.py:Lossy", "--trace", "made.trace"))
    assert (ran.code, ran.err) == (1, "")
    assert "policies that differ: 1 of 1" in ran.out.splitlines()[-1]


def test_a_policy_that_reads_the_clock_is_told_the_same_time(tmp_path):
    (tmp_path / "mine.py").write_text(POLICIES)
    assert "no difference" in done(*agree("--policy", "mine.py:ByTheClock", "--batch", "2"))


def test_a_policy_without_a_seed_differs(tmp_path):
    (tmp_path / "mine.py").write_text(POLICIES)
    ran = paceline(*agree("--policy", "mine.py:Coin"))
    assert (ran.code, ran.err) == (1, "")
    assert "verify by target: 0 of 0 accepted" in ran.out
    assert "draft by mid: 2 tokens of 2 asked for" in ran.out
    assert "answers differ in 0 of 4 requests" in ran.out


def test_an_interrupt_is_no_verdict(tmp_path):
    (tmp_path / "mine.py").write_text(POLICIES)
    ran = paceline(*agree("--policy", "plain", "--policy", "mine.py:Interrupted", "--json", "out.json"))
    assert (ran.code, ran.out) == (130, "")
    assert (tmp_path / "made").exists()
    assert not (tmp_path / "out.json").exists()


def test_a_policy_may_name_the_tag_of_a_request_that_is_left_out():
    done(*agree("--policy", "per-tag,default=plain,b=draft:2/target", "--limit", "1"))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--policy", "nope"), "unknown policy 'nope'"),
        (("--policy", "plain", "--policy", "plain"), "--policy plain is given twice"),
        (("--policy", "per-tag,default=plain,c=plain"), "names the tag c, which no request of the prompts has"),
        (("--closure", "all"), "'all' is not one of 'monotone', 'full'"),
        (("--temperature", "0.8"), "belong to --sampling coupled"),
        (
            ("--sampling", "rejection", "--temperature", "0.8", "--seed", "1"),
            "Invalid value for '--sampling': 'rejection' is not one of 'greedy', 'coupled'.",
        ),
        (("--batch", "0"), "--batch"),
        (("--cache", "heap"), "--cache"),
        (("--prompts", "missing.jsonl"), "missing.jsonl: No such file or directory"),
        (("--max-new-tokens", "300"), "--max-new-tokens 300 must fit into the pool's context of 256 tokens"),
        (("--json", "no/out.json"), "no/out.json: no folder no"),
    ],
)
def test_bad_input(args, told):
    assert told in refused(*agree(*args))
