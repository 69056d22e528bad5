"""Commands that run a pool of tiny random models: `agree`, and what `run` and `record` share with it."""

import json
from dataclasses import replace

import pytest
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.tasks import prompt_lines

from ..tiny_models import random_prompts, tiny_pool_of_four
from .command_line import done, paceline, refused, with_own

POOL = tiny_pool_of_four()
COUPLED = ("--sampling", "coupled", "--temperature", "0.8", "--seed", "7")
REJECTION = ("--sampling", "rejection", "--temperature", "1", "--seed", "1")
CHAINS = ("--policy", "plain", "--policy", "draft:2/mid:3/target", "--policy", "adaptive,most=6", "--policy", "ngram")
CHAIN = ("--policy", "draft:4/target")
AHEAD = ("--policy", "pearl,window=2", "--policy", "pipespec,window=2")
POLICIES = '''
from pathlib import Path

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
    """Tosses one that nobody gave a seed: no two of its kind fall alike."""

    tossed = [False]

    def __init__(self, pool):
        self.heads = self.tossed[0] = not self.tossed[0]

    def decide(self, seen):
        if seen.num_pending or seen.room < 1 or self.heads:
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


@pytest.fixture
def loads(monkeypatch):
    """Makes a pool the one that is loaded, whichever is asked for."""

    def with_pool(pool):
        monkeypatch.setattr(ModelPool, "load", staticmethod(lambda path, *, threads, devices, chat: pool))

    return with_pool


@pytest.fixture(autouse=True)
def place(loads, tmp_path):
    loads(POOL)
    (tmp_path / "mine.py").write_text(POLICIES)
    (tmp_path / "prompts.jsonl").write_text(prompt_lines(random_prompts(4, seed=2)))
    return tmp_path


def on_models(command, *args):
    return (command, *with_own(("--prompts", "prompts.jsonl", "--max-new-tokens", "12"), args))


def agree(*args):
    return on_models("agree", *args)


def data(*args):
    return json.loads(done(*args, "--json", "-"))


def record(path, *args):
    done("record", path, "--prompts", "prompts.jsonl", "--max-new-tokens", "12", "--no-costs", *args)


@pytest.fixture
def made(shared, place):
    """A recording of the prompts, made once; nobody changes it."""
    return shared("agree.trace", record)


# -- both worlds


@pytest.mark.parametrize(
    ("sampling", "batch", "cache", "start"),
    [
        ((), "1", "slots", "draft"),
        (COUPLED, "3", "mask", "prefill"),
    ],
)
def test_both_worlds_agree(place, sampling, batch, cache, start):
    shape = ("--batch", batch, "--cache", cache, "--start", start, "--reach", "8")
    found = data(*agree(*CHAINS, *sampling, *shape))
    assert (found["agree"], found["meta"]["batch"], found["meta"]["cache"]) == (True, int(batch), cache)
    assert found["meta"]["start"] == start
    assert [row["policy"] for row in found["policies"]] == list(CHAINS[1::2])
    for row in found["policies"]:
        assert (row["num_requests"], row["num_other_answers"], row["difference"]) == (4, 0, None)
        assert row["num_tokens"] == found["policies"][0]["num_tokens"] > 12
        assert row["num_steps"] >= row["num_ops"] > 0
    assert sorted(file.name for file in place.iterdir()) == ["mine.py", "prompts.jsonl"]


def test_the_reach_follows_the_chains():
    closure = data(*agree("--policy", "draft:8/slim:12/target", "--limit", "1"))["meta"]["closure"]
    assert closure == {"kind": "monotone", "reach": 20, "run": 20}


def test_a_recording_made_before(made):
    found = data(*agree(*CHAINS, "--trace", made, "--limit", "2"))
    assert (found["agree"], found["meta"]["requests"]) == (True, 2)


@pytest.mark.parametrize("policy", ["draft:2/target", "mine.py:Lossy"])
def test_other_models_are_a_difference(loads, place, made, policy):
    """Pools of one shape whose weights are not those of the recording: nothing but the comparison can tell."""
    loads(tiny_pool_of_four(seed=2))
    ran = paceline(*agree("--policy", policy, "--trace", made))
    assert (ran.code, ran.err) == (1, "")
    assert "policies that differ: 1 of 1" in ran.out.splitlines()[-1]
    assert ran.out.splitlines()[-2].startswith("the recording holds ")
    for words in (f"{policy}: request r0, step ", "  simulator ", "  runtime commits next  "):
        assert words in ran.out
    ran = paceline(*agree("--policy", policy, "--trace", made, "--json", "out.json"))
    assert (ran.code, ran.out, ran.err) == (1, "", "")
    found = json.loads((place / "out.json").read_text())
    assert found["agree"] is False
    difference = found["policies"][0]["difference"]
    assert difference["ran"] != difference["replayed"]


def test_a_lossy_policy_is_compared_up_to_where_it_leaves_the_record():
    args = ("--policy", "plain", "--policy", "mine.py:Lossy", "--batch", 3)
    text = done(*agree(*args))
    assert "mine.py:Lossy: left the record at step " in text
    assert text.splitlines()[-1].endswith("no difference")
    plain, lossy = data(*agree(*args))["policies"]
    assert (plain["num_left"], plain["left"], plain["num_replayed"]) == (0, None, plain["num_steps"])
    assert set(lossy["left"]) == {"request_id", "step"}
    assert 1 <= lossy["num_left"] <= lossy["num_requests"] == 4
    assert 0 < lossy["num_steps"] < lossy["num_replayed"]
    assert lossy["difference"] is None


def test_a_full_recording_holds_what_a_lossy_policy_does():
    args = ("--policy", "mine.py:Lossy", "--max-new-tokens", "5", "--closure", "full", "--reach", "5")
    (row,) = data(*agree(*args))["policies"]
    assert (row["num_left"], row["left"], row["num_replayed"]) == (0, None, row["num_steps"])


def test_a_policy_that_reads_the_clock_is_told_the_same_time():
    assert "no difference" in done(*agree("--policy", "mine.py:ByTheClock", "--batch", "2"))


def test_a_policy_without_a_seed_differs():
    ran = paceline(*agree("--policy", "mine.py:Coin"))
    assert (ran.code, ran.err) == (1, "")
    for words in ("verify by target: 0 of 0 accepted", "draft by mid: 2 tokens of 2", "answers differ in 0 of 4"):
        assert words in ran.out


def test_an_interrupt_is_no_verdict(place):
    ran = paceline(*agree("--policy", "plain", "--policy", "mine.py:Interrupted", "--json", "out.json"))
    assert (ran.code, ran.out) == (130, "")
    assert (place / "made").exists()
    assert not (place / "out.json").exists()


def test_a_policy_may_name_the_tag_of_a_request_that_is_left_out():
    done(*agree("--policy", "per-tag,default=plain,b=draft:2/target", "--limit", "1"))


# -- refusals


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (COUPLED, "agree.trace: sampling: must be the one asked for, mode coupled, temperature 0.8, seed 7, got"),
        (("--max-new-tokens", "9"), "requests, r0, max_new_tokens: must be the one asked for, 9, got 12"),
        (("--prompts", "more.jsonl"), "agree.trace: requests, r4: must be recorded for every prompt, got None"),
        (
            ("--prompts", "other.jsonl"),
            "agree.trace: requests, r0, prompt: must be the tokens of the prompt as it is, without --chat, got",
        ),
        (("--prompts", "tags.jsonl"), "agree.trace: requests, r0, tag: must be that of the prompt, 'other', got"),
        (("--reach", "9"), "--closure, --reach and --run belong to a recording made now; --trace has its own"),
        (
            ("--trace", "missing.trace"),
            "missing.trace: trace: no such folder; must be a .trace folder, or the name of a shipped one (",
        ),
    ],
)
def test_a_recording_of_something_else(place, made, args, told):
    (place / "more.jsonl").write_text(prompt_lines(random_prompts(5, seed=2)))
    (place / "other.jsonl").write_text(prompt_lines(random_prompts(4, seed=3)))
    (place / "tags.jsonl").write_text(prompt_lines([replace(one, tag="other") for one in random_prompts(4, seed=2)]))
    assert told in refused(*agree("--policy", "plain", *with_own(("--trace", made), args)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tokenizer_sha256": "1" * 64}, "tokenizer_sha256: must be that of pool tiny, 111111111111, got '00000"),
        ({"eos_token_ids": (3, 0)}, "eos_token_ids: must be [0, 3], got [0]"),
        ({"members": POOL.members[1:]}, "models: must be those of pool tiny, draft ("),
    ],
)
def test_a_recording_of_another_pool(loads, made, change, told):
    loads(replace(POOL, **change))
    assert told in refused(*agree("--policy", "plain", "--trace", made))


NOT_AHEAD = "--overlap is for policies that work ahead, such as pearl, got 'turns' for plain"


@pytest.mark.parametrize(
    ("command", "args", "told"),
    [
        ("agree", ("--policy", "plain", "--policy", "plain"), "--policy plain is given twice"),
        (
            "agree",
            ("--policy", "per-tag,default=plain,c=plain"),
            "names the tag c, which no request of the prompts has",
        ),
        ("agree", ("--temperature", "0.8"), "belong to --sampling coupled"),
        ("agree", ("--closure", "full", "--run", "2"), "--run goes with --closure monotone, got 2 with full, which"),
        ("agree", REJECTION, "Invalid value for '--sampling': 'rejection' is not one of 'greedy', 'coupled'."),
        ("agree", ("--max-new-tokens", "300"), "--max-new-tokens 300 must fit into the pool's context of 256 tokens"),
        ("agree", ("--start", "recorded"), "recorded"),
        ("run", ("--start", "recorded"), "recorded"),
        ("agree", ("--policy", "plain", *CHAIN, "--overlap", "turns"), f"{NOT_AHEAD} nor draft:4/target"),
        ("run", ("--policy", "plain", "--overlap", "turns"), NOT_AHEAD),
        *((command, ("--lossless", "--policy", "early-commit"), "is lossy, and") for command in ("run", "agree")),
        *((command, ("--lossless", "--policy", "mine.py:Lossy"), "is lossy, and") for command in ("run", "agree")),
        ("run", (*AHEAD[:2], "--overlap", "threads", "--kv-limit-mib", 3), "--overlap cannot be threads: "),
    ],
)
def test_what_is_refused(command, args, told):
    assert told in refused(*on_models(command, *args))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (REJECTION, "Invalid value for '--sampling': 'rejection' is not one of 'greedy', 'coupled'."),
        (("--closure", "full", "--run", "2"), "--run goes with --closure monotone, got 2 with full, which bounds none"),
        (("--trees", "4x2"), "--trees must be a member and a shape, as draft:4x2x1, got '4x2'"),
        (("--trees", "draft:0x2"), "widths of a tree must be >= 1, at least one, got (0, 2)"),
        (("--trees", "draft:wide=3"), "the shape of a tree "),
    ],
)
def test_what_cannot_be_recorded(place, args, told):
    assert told in refused("record", "made.trace", "--prompts", "prompts.jsonl", "--no-costs", *args)
    assert not (place / "made.trace").exists()


def test_a_policy_that_leaves_the_recording():
    line = refused(*agree("--policy", "plain", "--policy", "draft:4/mid:4/target", "--reach", "2"))
    assert line.startswith("policy draft:4/mid:4/target leaves the recording (request r")
    assert "--closure monotone --reach 2 --run 2; record deeper" in line


CLIMBS = """
from paceline.policies import Draft, Verify

class Climbs:
    def __init__(self, pool):
        self.steps = [Verify(pool.target), Draft("draft", 2), Draft("mid", 2)]

    def decide(self, seen):
        return self.steps[0 if seen.room < 2 or seen.num_pending > 2 else 1 + bool(seen.num_pending)]

    def learn(self, outcome):
        pass
"""


def test_a_deeper_recording_does_not_hold_drafts_after_unjudged_ones(place):
    """Only the full closure does, which is large: the refusal said to record deeper."""
    (place / "climbs.py").write_text(CLIMBS)
    climbs = agree("--policy", "climbs.py:Climbs")
    line = refused(*climbs)
    assert "; drafts after unjudged ones of a smaller member need --closure full and a small --reach" in line
    assert "no difference" in done(*climbs, "--closure", "full", "--reach", "4")


# -- trees, starts and working ahead


def test_recorded_trees_replay_up_to_their_shapes(place):
    record("made.trace", "--reach", 4, "--run", 4, "--trees", "draft:2x1", "--trees", "mid:beam=2,depth=2")
    meta = json.loads((place / "made.trace" / "meta.json").read_text(encoding="utf-8"))
    assert [tree["model"] for tree in meta["closure"]["trees"]] == ["draft", "mid"]
    seconds = {name: {"intercept_s": 0.01, "per_new_token_s": 0.001} for name in ("draft", "mid", "slim", "target")}
    (place / "cost.json").write_text(json.dumps(seconds))
    trees = ("--policy", "tree,shape=2x1", "--policy", "tree-dynamic,draft=mid,beams=2,depth=2,tokens=4")
    for row in data("compare", "--trace", "made.trace", "--cost", "cost.json", *trees)["policies"]:
        assert row["levels"][-1]["trees"] > 0
        assert row["draft_acceptance_rate"] is None
        assert 0 <= row["rejection_rate"] <= 1
    line = refused(*agree("--policy", "tree,shape=3", "--trace", "made.trace"))
    assert "it was recorded with --trees draft:2x1" in line
    assert line.endswith("; record with trees as wide and as deep")


@pytest.mark.parametrize("overlap", ["threads", "turns"])
def test_both_worlds_agree_however_members_work_at_the_same_time(overlap):
    found = data(*agree("--policy", "plain", *AHEAD, "--batch", 2, "--overlap", overlap))
    assert (found["agree"], found["meta"]["overlap"]) == (True, overlap)
    assert [row["ahead"] for row in found["policies"][1:]] == [overlap, overlap]
    assert [row["num_requests"] for row in found["policies"]] == [4, 4, 4]
