"""Members that work ahead write what the target alone writes; threads decide nothing.

Under rejection sampling, every way chance can go: what stands ahead is kept only where the target's own token happens
to equal its first one. That says nothing of those after it, so they still follow their drafter's distribution after
that very text; this is the proof by enumeration.
"""

from itertools import cycle, islice
from math import prod
from operator import itemgetter

import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.results import Deferred, Judged
from paceline.decoding.session import Session
from paceline.decoding.steps import Draft, Overlap, Verify
from paceline.runtime import caches, world
from paceline.runtime.ahead import TRIED, Lanes, Pace
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

from ..pairs import pairs
from ..tiny_models import random_prompts, tiny_pool_of_four
from .offline import COUPLED, GREEDY, REJECTION, Decides, Offline, in_double
from .sampling.test_lossless_enumeration import PLAIN, TOP_K, distance

POLICIES = (
    "pearl,window=3",
    "dsi,costs=draft:1/mid:2/slim:2/target:3",
    "pipespec,window=2",
    "pearl,draft=ngram,window=2",
)


def steps_of(ran):
    """All that is written down of a run but seconds."""
    return {name: column.tolist() for name, column in ran.log.steps.items() if not name.endswith("_s")}


def overlapping(note):
    """A kind of world that calls `note(world, items, results)` after members worked at the same time."""

    class Watched(TorchWorld):
        def overlap(self, levels, items):
            results = super().overlap(levels, items)
            note(self, items, results)
            return results

    return Watched


@pytest.mark.parametrize(
    ("policy", "sampling", "cache"), pairs(POLICIES, (GREEDY, COUPLED), ("slots", "mask")), ids=str
)
@pytest.mark.one_in(2)
def test_threads_and_turns_take_the_same_steps_to_the_text_of_the_target(tiny_pool, policy, sampling, cache):
    alone = Offline(tiny_pool, "plain", sampling=sampling).run()
    options = {"sampling": sampling, "memory": Memory(cache=cache)}
    for batch in (1, 3):
        ran = [Offline(tiny_pool, policy, overlap=how, **options).run(batch=batch) for how in ("turns", "threads")]
        assert all(each.failed == {} and each.texts == alone.texts for each in ran)
        assert steps_of(ran[0]) == steps_of(ran[1])
        assert max(ran[0].log.steps["part"]) >= 1
        assert [each.world.ahead.used for each in ran] == ["turns", "threads"]


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_short_memory_puts_requests_back_and_changes_no_text(tiny_pool, cache):
    """Room for about one request: the caches of all members are given up, and read anew."""
    held, sizes = [], {"num_tokens": 24}
    watching = overlapping(lambda world, *_: held.append(world.manager.held_bytes))
    whole = Offline(tiny_pool, "pearl,window=3", memory=Memory(cache=cache), world=watching, **sizes).run(batch=3)
    memory = Memory(cache=cache, limit_bytes=int(0.6 * max(held)))
    ran = Offline(tiny_pool, "pearl,window=3", memory=memory, **sizes).run(batch=3)
    assert ran.failed == {}
    assert ran.texts == whole.texts == Offline(tiny_pool, "plain", **sizes).run().texts
    assert ran.world.manager.num_preempted > 0
    assert ran.world.ahead.why


def test_who_has_to_wait_is_judged_anew_as_if_for_the_first_time(monkeypatch):
    """Also where one verdict was in before another member found no memory: what it left must not judge itself."""
    pool, prompts = in_double(tiny_pool_of_four()), random_prompts(4, seed=3)
    for module in ("caches", "state"):
        monkeypatch.setattr(f"paceline.runtime.{module}.SLOT_STEP", 4)
    waited, said = [], []

    def note(world, items, results):
        for (session, _), row in zip(items, results.rows, strict=True):
            if isinstance(row, Deferred):
                waited.append(session.request_id)
            else:
                said[-1].append((session.request_id, [part.tvd for part in row if isinstance(part, Judged)]))

    limit = 40 * 2 * sum(member.kv_bytes_per_token for member in pool.members if member.model is not None)
    for limit_bytes in (None, limit):
        said.append([])
        options = {"world": overlapping(note), "memory": Memory(limit_bytes=limit_bytes)}
        assert not Offline(pool, "pipespec,window=2", prompts, **options).run(batch=3).failed
        assert bool(waited) == (limit_bytes is not None)
    whole, short = (sorted(each, key=itemgetter(0)) for each in said)
    assert short == whole


@pytest.mark.parametrize(("cache", "blocks"), [("slots", None), ("mask", 9)])
def test_threads_that_find_no_memory_touch_nobody_elses(tiny_pool, monkeypatch, cache, blocks):
    """They leave it to turns, in which a member may take memory from others, and nothing is looked up twice."""
    prefixes = None if blocks is None else PrefixCacheSize(num_blocks=blocks, block_tokens=3)
    options = {"memory": Memory(cache=cache, prefixes=prefixes)}
    turns, threads = (Offline(tiny_pool, "pipespec,window=2", overlap=how, **options) for how in ("turns", "threads"))
    manager, refused, zeros = threads.world.manager, [], caches.zeros

    def none_beside(size, dtype, device):
        if manager.beside and prod(size):
            refused.append(size)
            raise MemoryError("no memory")
        return zeros(size, dtype, device)

    monkeypatch.setattr(caches, "SLOT_STEP", 4)
    monkeypatch.setattr(caches, "zeros", none_beside)
    for ran in (turns, threads):
        ran.run(batch=3)
    assert refused
    assert threads.failed == {}
    assert threads.texts == turns.texts
    assert steps_of(threads) == steps_of(turns)
    for name in ("asked_tokens", "hit_tokens", "entered_blocks", "evicted_blocks"):
        assert threads.log.ops[name].tolist() == turns.log.ops[name].tolist()


def test_threads_are_refused_where_they_would_race(tiny_pool):
    with pytest.raises(ArgumentError, match="`overlap` cannot be threads: rejection sampling draws"):
        TorchWorld(pool=tiny_pool, sampling=REJECTION, overlap="threads")
    ran = Offline(tiny_pool, "pearl,window=2", sampling=REJECTION).run(batch=2)
    assert ran.failed == {}
    assert ran.world.ahead.used == "turns"
    assert "rejection" in ran.world.ahead.why


def test_processes_compare_every_part_of_a_step(tiny_pool):
    """Two that differ in one part, or in its length, are not about to do the same."""
    session = Session(pool=loaded_pool(tiny_pool), request_id="r", tag="", prompt=(1,), budget=4, eos=frozenset())
    steps = [Overlap((Verify("target"), Draft(name, tokens))) for name in ("draft", "mid") for tokens in (2, 3)]
    steps += [Verify("target"), Draft("draft", 2), Draft("draft", 3)]
    asked = [str(world._asked(session, step)) for step in steps]
    assert len(set(asked)) == len(steps)
    assert asked == [str(world._asked(session, step)) for step in steps]


@pytest.mark.parametrize("quicker", [True, False])
def test_the_quicker_way_is_taken_once_both_were_tried(quicker):
    pace, taken = Pace("auto", ""), []
    for _ in range(4 * TRIED):
        taken.append(pace.threads_next)
        pace.note(1.0 if taken[-1] is quicker else 2.0, threads=taken[-1])
    assert taken[: 2 * TRIED + 2].count(True) == TRIED + 1
    assert set(taken[2 * TRIED + 2 :]) == {quicker}
    told = pace.told()
    assert (told.threads_s < told.turns_s) is quicker
    assert told.used == ("threads" if quicker else "turns")


# -- texts follow the target's distribution


TOP_THREE = Sampling(mode="rejection", temperature=1.0, seed=0, top_k=3)
TARGET, THREE, TWO = Verify("target"), Verify("three"), Verify("two")


def ahead(steps, *, hasty=False):
    """Steps in turn. Where the text has ended, nobody drafts, and each other member does what it would do anyway.

    A hasty one lets the target judge all at once there.
    """

    def make(_):
        turns = cycle(steps)

        def decide(seen):
            if hasty and seen.room < 1:
                return TARGET
            for step in islice(turns, len(steps)):
                if seen.room > 0 and not (isinstance(step, Verify) and step != TARGET and not seen.waiting(step.model)):
                    return step
                parts = [part for part in getattr(step, "steps", (step,)) if isinstance(part, Verify)]
                able = tuple(part for part in parts if part == TARGET or seen.waiting(part.model))
                if able:
                    return Overlap(able) if len(able) > 1 else able[0]
            return TARGET

        return Decides(decide)

    return make


LIMIT = (Overlap((TWO, Draft("one", 1))), Overlap((TARGET, THREE, Draft("two", 1))))


@pytest.mark.parametrize(
    ("sampling", "num_tokens", "steps"),
    [
        # Two tokens left at every context, so that there are few branches.
        (TOP_K, 3, (Overlap((TARGET, Draft("one", 2))),)),
        (TOP_K, 3, (Overlap((TARGET, Draft("ngram", 2))),)),
        (TOP_K, 3, (Draft("one", 1), Overlap((TARGET, Draft("one", 1))))),
        (TOP_K, 2, (Overlap((TARGET, TWO, Draft("one", 1))),)),
        (TOP_K, 3, (Overlap((TARGET, TWO, Draft("one", 2))),)),
        (TOP_K, 3, (Overlap((TARGET, TWO)),)),
        (TOP_K, 3, (Overlap((TWO, Draft("one", 1))), TARGET)),
        (TOP_K, 2, (Overlap((TARGET, THREE, TWO, Draft("one", 1))),)),
        (TOP_K, 2, LIMIT),
        (TOP_THREE, 3, (Overlap((TARGET, Draft("one", 1))),)),
        (PLAIN, 2, (Overlap((TARGET, Draft("one", 1))),)),
    ],
)
@pytest.mark.one_in(5)
def test_texts_follow_the_target(sampling, num_tokens, steps):
    assert distance(sampling, ahead(steps), num_tokens) < 1e-9


def test_who_judges_must_not_depend_on_what_is_pending():
    """The limit of the proof, and why `Overlap` says so.

    Here the target writes past a pending token that goes on, and judges one that ends the text: two ways to the same
    distribution, but what is pending chooses between them.
    """
    assert distance(TOP_K, ahead(LIMIT, hasty=True), 2) > 1e-3


@pytest.mark.slow
def test_a_verdict_that_has_to_wait_counts_for_nothing(monkeypatch):
    """Every text waits once after a verdict: one that stayed in part would give refused tokens a second chance."""
    known = []

    def lost(self, items, num_evicted):
        new = [session for session, _ in items if all(session is not each for each in known)]
        known.extend(new)
        return {session.request_id for session in new}

    monkeypatch.setattr(Lanes, "_lost", lost)
    # Of two tokens, none is kept by chance here.
    assert distance(TOP_THREE, ahead((Draft("one", 1), Overlap((TARGET, Draft("one", 1))))), 2) < 1e-9
    assert known


@pytest.mark.parametrize(
    ("policy", "cache"),
    [
        ("pearl,draft=one,window=2", "slots"),
        ("pearl,draft=one,window=2", "mask"),
        ("pipespec,draft=one,middle=two,window=1", "mask"),
        ("pipespec,draft=one,window=1", "slots"),
    ],
)
def test_policies_write_what_their_target_would(policy, cache):
    assert distance(TOP_K, policy, 2, memory=Memory(cache=cache), beside=True) < 1e-9
