"""Rejection sampling with members that work ahead, every way chance can go: texts follow the target's distribution.

What stands ahead is kept only where the target's own token happens to equal its first one. That says nothing of those
after it, so they still follow their drafter's distribution after that very text; this is the proof by enumeration.
"""

import pytest
from paceline.policies import Draft, Overlap, Verify
from paceline.runtime.ahead import Lanes
from paceline.runtime.threads import Memory
from paceline.traces.meta import Sampling

from ..sampling.test_lossless_enumeration import PLAIN, TOP_K, distance

TARGET, THREE, TWO = Verify("target"), Verify("three"), Verify("two")


class Ahead:
    """Steps in turn. Where the text has ended, nobody drafts, and each other member does what it would do anyway."""

    def __init__(self, steps):
        self._steps = steps
        self._next = 0

    def decide(self, seen):
        for _ in self._steps:
            step = self._steps[self._next % len(self._steps)]
            self._next += 1
            if seen.room > 0 and not (isinstance(step, Verify) and step != TARGET and not seen.waiting(step.model)):
                return step
            parts = [part for part in getattr(step, "steps", (step,)) if isinstance(part, Verify)]
            able = tuple(part for part in parts if part == TARGET or seen.waiting(part.model))
            if able:
                return Overlap(able) if len(able) > 1 else able[0]
        return TARGET

    def learn(self, outcome):
        pass


class Hasty(Ahead):
    """The same, but where the text has ended the target judges all at once."""

    def decide(self, seen):
        return TARGET if seen.room < 1 else super().decide(seen)


CASES = (
    ((Overlap((TARGET, Draft("one", 2))),), 3),
    ((Overlap((TARGET, Draft("ngram", 2))),), 3),
    ((Draft("one", 1), Overlap((TARGET, Draft("one", 1)))), 3),
    ((Overlap((TARGET, TWO, Draft("one", 1))),), 2),
    ((Overlap((TARGET, TWO, Draft("one", 2))),), 3),
    ((Overlap((TARGET, TWO)),), 3),
    ((Overlap((TWO, Draft("one", 1))), TARGET), 3),
    ((Overlap((TARGET, THREE, TWO, Draft("one", 1))),), 2),
    ((Overlap((TWO, Draft("one", 1))), Overlap((TARGET, THREE, Draft("two", 1)))), 2),
)


def named(case):
    return "+".join(
        "/".join(f"{type(part).__name__[0]}-{part.model}" for part in getattr(step, "steps", (step,))) for step in case
    )


@pytest.mark.parametrize(("steps", "num_tokens"), CASES, ids=[f"{named(steps)}" for steps, _ in CASES])
def test_texts_follow_the_target(steps, num_tokens):
    """Two tokens left at every context, so that there are few branches."""
    assert distance(TOP_K, lambda _: Ahead(steps), num_tokens) < 1e-9


def test_who_judges_must_not_depend_on_what_is_pending():
    """The limit of the proof, and why `Overlap` says so.

    Here the target writes past a pending token that goes on, and judges one that ends the text: two ways to the same
    distribution, but what is pending chooses between them.
    """
    steps = (Overlap((TWO, Draft("one", 1))), Overlap((TARGET, THREE, Draft("two", 1))))
    assert distance(TOP_K, lambda _: Hasty(steps), 2) > 1e-3
    assert distance(TOP_K, lambda _: Ahead(steps), 2) < 1e-9


@pytest.mark.slow
def test_a_verdict_that_has_to_wait_counts_for_nothing(monkeypatch):
    """Every text waits once after a verdict: one that stayed in part would give refused tokens a second chance."""
    known = []

    def lost(self, items, num_evicted):
        new = [session for session, _ in items if all(session is not each for each in known)]
        known.extend(new)
        return {session.request_id for session in new}

    monkeypatch.setattr(Lanes, "_lost", lost)
    top_three = Sampling(mode="rejection", temperature=1.0, seed=0, top_k=3)  # of two, none is kept by chance here
    steps = (Draft("one", 1), Overlap((TARGET, Draft("one", 1))))
    assert distance(top_three, lambda _: Ahead(steps), 2) < 1e-9
    assert known


@pytest.mark.parametrize("cache_kind", ["slots", "mask"])
@pytest.mark.parametrize(
    "policy",
    ["pearl,draft=one,window=2", "pipespec,draft=one,middle=two,window=1", "pipespec,draft=one,window=1"],
)
def test_policies_write_what_their_target_would(policy, cache_kind):
    assert distance(TOP_K, policy, 2, memory=Memory(cache=cache_kind), beside=True) < 1e-9


def test_over_all_tokens():
    assert distance(PLAIN, lambda _: Ahead((Overlap((TARGET, Draft("one", 1))),)), 3) < 1e-9
