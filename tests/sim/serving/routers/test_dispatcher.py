"""Signals are as old as they say, and a router that breaks its contract is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.routers import Dispatcher, ReplicaSignals, RouterError
from paceline.traces.workloads.arrival import Arrival


class Replica:
    """A replica whose load a test sets; its prefix cache is a set of texts."""

    def __init__(self):
        self.waiting = 0
        self.cached = set()

    def signals(self):
        return ReplicaSignals(running=0, waiting=self.waiting, queued_tokens=0, free_kv_share=1.0)

    def cached_tokens(self, arrival):
        return arrival.prompt_tokens if arrival.request_id in self.cached else 0

    def frozen_prefixes(self):
        known = frozenset(self.cached)
        return lambda arrival: arrival.prompt_tokens if arrival.request_id in known else 0


class Notes:
    """A router that notes what it sees, and picks what it is told."""

    reads_prefixes = True

    def __init__(self, picks=0):
        self.picks = picks
        self.seen = []

    def pick(self, arrival, seen):
        self.seen.append((seen.snapshot, [told.waiting for told in seen.signals], seen.cached_tokens(0)))
        return self.picks


class Blind(Notes):
    """One that does not say that it reads prefixes."""

    reads_prefixes = False


REQUEST = Arrival("r", 0, 100, 10)


def test_live_signals_are_those_of_the_arrival():
    replicas, router = [Replica(), Replica()], Notes()
    dispatcher = Dispatcher(router, "notes", replicas)
    assert dispatcher.next_snapshot_ps(17) is None
    dispatcher.pick(REQUEST)
    replicas[1].waiting = 3
    replicas[0].cached.add("r")
    dispatcher.pick(REQUEST)
    (first, *before), (second, *after) = router.seen
    assert (before, after) == ([[0, 0], 0], [[0, 3], 100])
    assert first != second


def test_stale_signals_are_those_of_the_snapshot():
    replicas, router = [Replica(), Replica()], Notes()
    dispatcher = Dispatcher(router, "notes", replicas, stale_ps=10)
    replicas[1].waiting = 3
    replicas[0].cached.add("r")
    dispatcher.pick(REQUEST)
    dispatcher.pick(REQUEST)
    dispatcher.take_snapshot()
    replicas[1].waiting = 9
    dispatcher.pick(REQUEST)
    assert [seen[1:] for seen in router.seen] == [([0, 0], 0), ([0, 0], 0), ([0, 3], 100)]
    assert [seen[0] for seen in router.seen] == [1, 1, 2]


@given(stale_ps=st.integers(1, 10**12), now_ps=st.integers(0, 10**18))
def test_snapshots_are_taken_at_multiples(stale_ps, now_ps):
    due = Dispatcher(Notes(), "notes", [Replica()], stale_ps).next_snapshot_ps(now_ps)
    assert due % stale_ps == 0
    assert now_ps < due <= now_ps + stale_ps


@pytest.mark.parametrize("picked", [-1, 2, True, None, 0.0, "0"])
def test_what_is_no_replica_is_refused(picked):
    dispatcher = Dispatcher(Notes(picked), "notes", [Replica(), Replica()])
    with pytest.raises(RouterError, match=r"router 'notes', request r: must pick a replica in \[0, 1\], got"):
        dispatcher.pick(REQUEST)


def test_what_a_router_raises_is_told():
    class Broken:
        def pick(self, arrival, seen):
            return {}["x"]

    with pytest.raises(
        RouterError, match=r"router 'mine', request r: pick raised KeyError: 'x' \(.*test_dispatcher.py"
    ):
        Dispatcher(Broken(), "mine", [Replica()]).pick(REQUEST)


def test_prefixes_of_stale_signals_are_kept_for_those_who_say_so():
    assert Dispatcher(Blind(), "blind", [Replica()]).pick(REQUEST) == 0
    with pytest.raises(RouterError, match="asks for cached prefixes of stale signals, and does not say reads_prefixes"):
        Dispatcher(Blind(), "blind", [Replica()], stale_ps=5).pick(REQUEST)


def test_a_router_that_says_it_looks_at_nothing_is_held_to_it():
    class Looks(Blind):
        reads_signals = False

    dispatcher = Dispatcher(Looks(), "looks", [Replica()])
    assert not dispatcher.looks
    with pytest.raises(RouterError, match="request r: asks for signals, and says reads_signals = False"):
        dispatcher.pick(REQUEST)
