"""Real models that work ahead write what the target alone writes; threads decide nothing."""

from math import prod
from operator import itemgetter

import pytest
from paceline.base.errors import ArgumentError
from paceline.decoding.prefixes import PrefixCacheSize
from paceline.decoding.results import Deferred, Judged
from paceline.decoding.session import Session
from paceline.decoding.steps import Draft, Overlap, Verify
from paceline.runtime import caches as member_kv
from paceline.runtime import state as state_manager
from paceline.runtime import world
from paceline.runtime.ahead import TRIED, Pace
from paceline.runtime.caches import zeros
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.threads import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

from ...pairs import pairs
from ...tiny_models import random_prompts, tiny_pool_of_four
from ..offline import COUPLED, GREEDY, Offline, in_double

POLICIES = (
    "pearl,window=3",
    "dsi,costs=draft:1/mid:2/slim:2/target:3",
    "pipespec,window=2",
    "pearl,draft=ngram,window=2",
)
REJECTION = Sampling(mode="rejection", temperature=0.9, seed=3)


def steps_of(ran):
    """All that is written down of a run but seconds."""
    log = ran.log
    return {name: column.tolist() for name, column in log.steps.items() if not name.endswith("_s")}


@pytest.mark.parametrize(
    ("policy", "sampling", "cache"), pairs(POLICIES, (GREEDY, COUPLED), ("slots", "mask")), ids=str
)
def test_threads_and_turns_take_the_same_steps_to_the_text_of_the_target(tiny_pool, policy, sampling, cache):
    alone = Offline(tiny_pool, "plain", sampling=sampling).run()
    memory = Memory(cache=cache)
    ran = [
        Offline(tiny_pool, policy, sampling=sampling, memory=memory, overlap=overlap).run(batch=batch)
        for overlap, batch in (("turns", 1), ("threads", 1), ("turns", 3), ("threads", 3))
    ]
    assert all(each.failed == {} and each.texts == alone.texts for each in ran)
    assert steps_of(ran[0]) == steps_of(ran[1])
    assert steps_of(ran[2]) == steps_of(ran[3])
    assert max(ran[0].log.steps["part"]) >= 1
    assert [each.world.ahead.used for each in ran] == ["turns", "threads"] * 2


@pytest.mark.parametrize("cache", ["slots", "mask"])
def test_short_memory_puts_requests_back_and_changes_no_text(tiny_pool, cache):
    """Room for about one request: the caches of all members are given up, and read anew."""
    alone = Offline(tiny_pool, "plain").run()
    whole = Offline(tiny_pool, "pearl,window=3", memory=Memory(cache=cache)).run(batch=3)
    limit = int(0.6 * most_held(tiny_pool, cache))
    ran = Offline(tiny_pool, "pearl,window=3", memory=Memory(cache=cache, limit_bytes=limit)).run(batch=3)
    assert ran.failed == {}
    assert ran.texts == whole.texts == alone.texts
    assert ran.world.manager.num_preempted > 0
    assert ran.world.ahead.why


def test_who_has_to_wait_is_judged_anew_as_if_for_the_first_time(monkeypatch):
    """Also where one verdict was in before another member found no memory: what it left must not judge itself."""
    pool, prompts = in_double(tiny_pool_of_four()), random_prompts(4, seed=3)
    for module in (member_kv, state_manager):
        monkeypatch.setattr(module, "SLOT_STEP", 4)
    waited, said = [], []

    class Noting(TorchWorld):
        def overlap(self, levels, items):
            results = super().overlap(levels, items)
            for (session, _), row in zip(items, results.rows, strict=True):
                if isinstance(row, Deferred):
                    waited.append(session.request_id)
                else:
                    said[-1].append((session.request_id, [part.tvd for part in row if isinstance(part, Judged)]))
            return results

    limit = 40 * 2 * sum(member.kv_bytes_per_token for member in pool.members if member.model is not None)
    for limit_bytes in (None, limit):
        said.append([])
        memory = Memory(limit_bytes=limit_bytes)
        ran = Offline(pool, "pipespec,window=2", prompts=prompts, world=Noting, memory=memory).run(batch=3)
        assert not ran.failed
        assert bool(waited) == (limit_bytes is not None)
    whole, short = (sorted(each, key=itemgetter(0)) for each in said)
    assert short == whole


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("blocks", [None, 9])
def test_threads_that_find_no_memory_touch_nobody_elses(tiny_pool, monkeypatch, cache, blocks):
    """They leave it to turns, in which a member may take memory from others, and nothing is looked up twice."""
    prefixes = None if blocks is None else PrefixCacheSize(num_blocks=blocks, block_tokens=3)
    memory = Memory(cache=cache, prefixes=prefixes)
    ran = {kind: Offline(tiny_pool, "pipespec,window=2", memory=memory, overlap=kind) for kind in ("turns", "threads")}
    manager, refused = ran["threads"].world.manager, []

    def none_beside(size, dtype, device):
        if manager.beside and prod(size):
            refused.append(size)
            raise MemoryError("no memory")
        return zeros(size, dtype, device)

    monkeypatch.setattr("paceline.runtime.caches.SLOT_STEP", 4)
    monkeypatch.setattr("paceline.runtime.caches.zeros", none_beside)
    turns, threads = (ran[kind].run(batch=3) for kind in ("turns", "threads"))
    assert refused
    assert threads.failed == {}
    assert threads.texts == turns.texts
    assert steps_of(threads) == steps_of(turns)
    for name in ("asked_tokens", "hit_tokens", "entered_blocks", "evicted_blocks"):
        assert threads.log.ops[name].tolist() == turns.log.ops[name].tolist()


def most_held(pool, cache):
    """Bytes that three requests hold at most."""

    class Watched(TorchWorld):
        most = 0

        def overlap(self, levels, items):
            results = super().overlap(levels, items)
            Watched.most = max(Watched.most, self.manager.held_bytes)
            return results

    Offline(pool, "pearl,window=3", world=Watched, memory=Memory(cache=cache)).run(batch=3)
    return Watched.most


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
    pace = Pace("auto", "")
    taken = []
    for _ in range(4 * TRIED):
        threads = pace.threads_next
        taken.append(threads)
        pace.note(1.0 if threads is quicker else 2.0, threads=threads)
    assert taken[: 2 * TRIED + 2].count(True) == TRIED + 1
    assert set(taken[2 * TRIED + 2 :]) == {quicker}
    told = pace.told()
    assert (told.threads_s < told.turns_s) is quicker
    assert told.used == ("threads" if quicker else "turns")
