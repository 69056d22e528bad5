"""What breaks one request: it fails alone, by name, and the others do not notice."""

import copy
from itertools import cycle
from math import inf, nan

import numpy as np
import pytest
import torch
from paceline.policies import ConfidenceBelow, Draft, Ratio, Verify, make_policy
from paceline.policies.fixed import Chain
from paceline.reports.summary import summarise_run
from paceline.runtime.decode import decode
from paceline.runtime.distances import NonFiniteLogitsError
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.prompts import Prompt
from paceline.runtime.state import CacheDesyncError
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

from ..conftest import ALPHABET, noisy
from ..offline import COUPLED, GREEDY, Offline, in_double, with_models

BAD = "qu"
# Only "bad" holds the letter whose embedding is broken; those after it take over its row.
PROMPTS = (
    Prompt(request_id="long", text="hello there, how do you do, how do you"),
    Prompt(request_id="bad", text="the " + BAD),
    Prompt(request_id="short", text="a"),
    Prompt(request_id="next", text="pace line"),
    Prompt(request_id="last", text="b c"),
)
REJECTION = Sampling(mode="rejection", temperature=0.9, seed=3)
TRUNCATED = Sampling(mode="rejection", temperature=0.9, seed=3, top_k=5, top_p=0.8)


def broken(model, value):
    """A copy of the model in which one letter's embedding holds `value`."""
    other = copy.deepcopy(model)
    other.model.embed_tokens.weight[ALPHABET.index(BAD[0])] = value
    return other


def broken_head(model, value):
    """A copy that says `value` of one token after every context."""
    other = copy.deepcopy(model)
    other.lm_head.weight[3] = value
    return other


@pytest.fixture(scope="module")
def pool(tiny_pool):
    """No member ever writes the broken letter by itself: its logit is the mean of two others."""
    models = models_of(in_double(tiny_pool))
    for model in models.values():
        head = model.lm_head.weight
        head[ALPHABET.index(BAD[0])] = (head[1] + head[2]) / 2
    return with_models(tiny_pool, **models)


@pytest.fixture(scope="module")
def muted_pool(tiny_pool):
    """No member ever draws the broken letter either; run with `modules`, since hooks see to that."""
    models = models_of(in_double(tiny_pool))
    for model in models.values():
        model.lm_head.register_forward_hook(lambda _, __, logits: logits.index_fill(-1, muted, -1e4))
    muted = torch.tensor([ALPHABET.index(BAD[0])])
    return with_models(tiny_pool, **models)


def models_of(pool):
    return {member.name: member.model for member in pool.members if member.model is not None}


POLICIES = {
    "plain": ("plain", "target"),
    "a draft": ("draft:3/target", "draft"),
    "a middle verifier": ("draft:2/mid:3/target", "mid"),
    "the target": ("draft:3/target", "target"),
    "the target above a middle": ("draft:2/mid:3/target", "target"),
}


@pytest.mark.parametrize(
    ("case", "how"), [*zip(POLICIES, cycle([("slots", "fused"), ("mask", "modules")]), strict=False)], ids=str
)
def test_a_request_with_broken_logits_fails_alone(pool, case, how):
    (policy, name), (cache, forward) = POLICIES[case], how
    model = broken(pool.member(name).model, nan)
    options = {"memory": Memory(cache=cache), "forward": forward}
    done = Offline(with_models(pool, **{name: model}), policy, PROMPTS, **options).run(batch=3)
    assert list(done.failed) == ["bad"]
    assert isinstance(done.failed["bad"], NonFiniteLogitsError)
    assert str(done.failed["bad"]).startswith(f"model {name}, request bad: the logits at output position ")
    assert_the_others_are_as_ever(done, pool, policy)


def assert_the_others_are_as_ever(done, pool, policy, sampling=GREEDY, **options):
    sound = [prompt for prompt in PROMPTS if prompt.request_id != "bad"]
    expected = Offline(pool, policy, sound, sampling=sampling, **options).run()
    assert {session.request_id: session.emitted for session in done.sessions if session.request_id != "bad"} == {
        session.request_id: session.emitted for session in expected.sessions
    }
    assert (done.log.requests["failed"] != "").tolist() == [prompt.request_id == "bad" for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("draft", COUPLED), ("mid", REJECTION), ("mid", COUPLED), ("target", TRUNCATED), ("draft", REJECTION)],
    ids=str,
)
def test_sampling_finds_broken_logits_too(muted_pool, name, sampling):
    other = with_models(muted_pool, **{name: broken(muted_pool.member(name).model, nan)})
    options = {"sampling": sampling, "forward": "modules"}
    done = Offline(other, "draft:2/mid:3/target", PROMPTS, **options).run(batch=3)
    assert list(done.failed) == ["bad"]
    assert_the_others_are_as_ever(done, muted_pool, "draft:2/mid:3/target", **options)


@pytest.mark.parametrize(("name", "batch"), [("draft", 1), ("target", 3)])
def test_policies_that_look_at_signals_find_broken_logits_too(pool, name, batch):
    chain = lambda pool: Chain(loaded_pool(pool), "draft:4/target", stop=ConfidenceBelow(0.4))  # noqa: E731
    other = with_models(pool, **{name: broken(pool.member(name).model, nan)})
    done = Offline(other, chain(other), PROMPTS).run(batch=batch)
    assert list(done.failed) == ["bad"]
    assert_the_others_are_as_ever(done, pool, chain(pool))


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED, REJECTION], ids=lambda sampling: sampling.mode)
def test_lossy_rules_find_broken_logits_too(muted_pool, sampling):
    class Lenient:
        def decide(self, seen):
            return Verify("target", Ratio(0.5)) if seen.num_pending else Draft("draft", 3)

        def learn(self, outcome):
            pass

    other = with_models(muted_pool, target=broken(muted_pool.target.model, nan))
    options = {"sampling": sampling, "forward": "modules"}
    done = Offline(other, Lenient(), PROMPTS, **options).run(batch=3)
    assert list(done.failed) == ["bad"]
    assert_the_others_are_as_ever(done, muted_pool, Lenient(), **options)


@pytest.mark.parametrize(
    ("name", "sampling", "value"),
    [
        ("draft", GREEDY, inf),
        ("target", GREEDY, -inf),
        ("target", COUPLED, inf),
        ("draft", REJECTION, inf),
        ("draft", TRUNCATED, nan),
        ("target", TRUNCATED, inf),
    ],
    ids=lambda value: getattr(value, "mode", str(value)),
)
def test_any_logit_that_is_no_number_fails_every_request_by_name(tiny_pool, name, sampling, value):
    other = with_models(tiny_pool, **{name: broken_head(tiny_pool.member(name).model, value)})
    done = Offline(other, "draft:2/mid:3/target", PROMPTS[2:], sampling=sampling).run(batch=2)
    assert sorted(done.failed) == ["last", "next", "short"]
    first = int(name != "target")  # the target writes the first token, and the draft what follows
    for request_id, error in done.failed.items():
        assert str(error).startswith(f"model {name}, request {request_id}: the logits at output position {first} ")


def test_outputs_hold_the_failed_and_the_log_gives_the_reason(pool):
    other = with_models(pool, target=broken(pool.target.model, nan))
    outputs, log = decode(
        other,
        make_policy("draft:3/target", loaded_pool(other)),
        PROMPTS,
        sampling=GREEDY,
        max_new_tokens=12,
        name="draft:3/target",
        batch=3,
    )
    assert [output.request_id for output in outputs] == [prompt.request_id for prompt in PROMPTS]
    assert [output.finish_reason == "error" for output in outputs] == [False, True, False, False, False]
    assert outputs[1].error == log.requests["failed"][1]
    assert outputs[1].error.startswith(
        "model target, request bad: the logits at output position 0 or after it hold NaN"
    )
    assert outputs[1].tokens == ()
    assert summarise_run(log).failed == 1


class Tampering(TorchWorld):
    """Spoils what one request holds before the fourth operation."""

    def draft(self, level, items):
        self.count()
        return super().draft(level, items)

    def verify(self, level, items):
        self.count()
        return super().verify(level, items)

    def count(self):
        self.num_ops = getattr(self, "num_ops", 0) + 1
        if self.num_ops == 4:
            self.spoil()

    def target(self):
        return self.manager.caches[max(self.manager.caches)]


class OtherText(Tampering):
    problem = "holds another text"

    def spoil(self):
        self.manager.states["short"].fed[max(self.manager.caches)][0] += 1


class ShortCache(Tampering):
    problem = r"holds \d+ tokens, but was fed \d+"

    def spoil(self):
        cache = self.target()
        cache.roll_back("short", cache.length("short") - 1)


class ShortText(Tampering):
    problem = r"holds \d+ tokens, but was fed \d+"

    def spoil(self):
        del self.manager.states["short"].fed[max(self.manager.caches)][-1]


class BothShort(Tampering):
    problem = r"holds \d+ tokens, not \d+"

    def spoil(self):
        level = max(self.manager.caches)
        state = self.manager.states["short"]
        self.manager.roll_back(state, level, len(state.fed[level]) - 1)


@pytest.mark.parametrize(
    ("world", "cache"),
    [(OtherText, "slots"), (ShortCache, "slots"), (ShortCache, "mask"), (ShortText, "mask"), (BothShort, "mask")],
)
def test_debug_mode_finds_a_cache_out_of_step(pool, world, cache):
    done = Offline(pool, "draft:3/target", PROMPTS, world=world, memory=Memory(cache=cache)).run(batch=3)
    assert list(done.failed) == ["short"]
    with pytest.raises(CacheDesyncError, match=f"request short: the cache of target {world.problem}"):
        raise done.failed["short"]
    healthy = Offline(pool, "draft:3/target", PROMPTS).run(batch=3)
    for session, expected in zip(done.sessions, healthy.sessions, strict=True):
        if session.request_id != "short":
            assert session.emitted == expected.emitted


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_debug_mode_finds_a_row_that_two_requests_share(pool, cache):
    class Shared(Tampering):
        def spoil(self):
            rows = self.target().rows
            rows["short"] = rows["long"]

    done = Offline(pool, "plain", PROMPTS[::2], world=Shared, memory=Memory(cache=cache)).run(batch=3)
    assert set(done.failed) >= {"short"}
    assert all(isinstance(error, CacheDesyncError) for error in done.failed.values())


def test_a_drafter_that_never_agrees_thrashes(tiny_pool):
    """As slow as the target and never right: every token costs five forwards where one would do."""
    stranger = noisy(tiny_pool.target.model, 3.0, seed=8)
    pool = with_models(tiny_pool, mid=stranger)
    log = decoded_log(pool, "mid:4/target")
    judged = log.steps["judged"].sum()
    assert log.steps["accepted"].sum() < 0.2 * judged
    assert (log.requests["times_plain"] > 1).all()
    assert summarise_run(log).thrashed == len(PROMPTS)


def test_the_target_alone_does_not_thrash(tiny_pool):
    """It is the measure, whatever noise there is in its own seconds."""
    log = decoded_log(tiny_pool, "plain")
    assert np.isnan(log.requests["times_plain"]).all()
    assert summarise_run(log).thrashed == 0


def decoded_log(pool, policy, prompts=PROMPTS):
    return decode(
        pool,
        make_policy(policy, loaded_pool(pool)),
        prompts,
        sampling=GREEDY,
        max_new_tokens=24,
        name=policy,
    )[1]
