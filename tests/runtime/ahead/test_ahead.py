"""Real models that work ahead write what the target alone writes; threads decide nothing."""

import pytest
from paceline.arguments import ArgumentError
from paceline.runtime.ahead.pace import TRIED, Pace
from paceline.runtime.memory import Memory
from paceline.runtime.world import TorchWorld
from paceline.traces.meta import Sampling

from ..offline import COUPLED, GREEDY, Offline

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


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("policy", POLICIES)
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
