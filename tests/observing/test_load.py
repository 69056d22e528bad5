"""Who sends what when: nothing early, nothing lost, nothing twice, and never more at a time than asked for."""

from threading import Lock
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.observing.load_generator import LoadGenerator
from paceline.observing.server import ClientClock, Exchange
from paceline.runs.observed import ObservedRequest
from paceline.traces.workloads.arrival import Arrival

MS = 10**9


class Stop:
    """Heard after so many requests were sent; None: never."""

    def __init__(self, after=None):
        self.after, self.sent = after, 0

    def heard(self):
        return self.after is not None and self.sent >= self.after


class Sender:
    """Answers after a while, and counts."""

    def __init__(self, clock, stop, took_s=0.002):
        self.clock, self.stop, self.took_s = clock, stop, took_s
        self.running = self.most = 0
        self.lock = Lock()

    def __call__(self, arrival, due_at_ps):
        sent_at_ps = self.clock.now_ps()
        with self.lock:
            self.stop.sent += 1
            self.running += 1
            self.most = max(self.most, self.running)
        sleep(self.took_s)
        with self.lock:
            self.running -= 1
        times = {"due_at_ps": due_at_ps, "sent_at_ps": sent_at_ps, "ended_at_ps": self.clock.now_ps()}
        seen = ObservedRequest(request_id=arrival.request_id, prompt_id="p", asked_tokens=1, **times)
        return Exchange(seen=seen, prompt="", answer="", done=True)


def load(times_ms, *, after=None, took_s=0.002):
    arrivals = [Arrival(str(number), at * MS, 1, 1) for number, at in enumerate(sorted(times_ms))]
    clock, stop, ended = ClientClock(), Stop(after), []
    sender = Sender(clock, stop, took_s)
    return LoadGenerator(arrivals, sender, clock, stop, lambda: ended.append(None)), sender, ended


@settings(max_examples=15)
@given(st.lists(st.integers(0, 30), max_size=12))
def test_an_open_loop_sends_each_once_and_none_early(times_ms):
    made, _, ended = load(times_ms)
    made.open_loop()
    seen = [one.seen for one in made.ended()]
    assert sorted(one.request_id for one in seen) == sorted(map(str, range(len(times_ms))))
    assert sorted(one.due_at_ps for one in seen) == [at * MS for at in sorted(times_ms)]
    assert all(one.sent_at_ps >= one.due_at_ps for one in seen)
    assert len(ended) == len(times_ms)


@settings(max_examples=10)
@given(st.integers(0, 12), st.integers(1, 5))
def test_a_closed_loop_sends_each_once_and_never_more_at_a_time(count, concurrency):
    made, sender, _ = load([10**6] * count)  # their times do not matter
    made.closed_loop(concurrency)
    assert len(made.ended()) == count
    assert sender.most == min(count, concurrency) or sender.most < concurrency


@pytest.mark.parametrize("concurrency", [None, 2])
def test_after_a_stop_nothing_is_sent(concurrency):
    days = 10**9  # in milliseconds: nobody waits for what is due then
    made, sender, _ = load([0, 0, 0] + [days] * 9 if concurrency is None else [0] * 50, after=3)
    made.open_loop() if concurrency is None else made.closed_loop(concurrency)
    # A thread that is slow to begin is not seen by who starts the next one.
    assert 3 <= len(made.ended()) == sender.stop.sent <= 3 + (concurrency or 0)


def test_what_a_thread_raises_is_raised():
    def broken(*_):
        raise RuntimeError("ours")

    made = LoadGenerator(
        [Arrival("a", 0, 1, 1), Arrival("b", 10**12 * 60, 1, 1)], broken, ClientClock(), Stop(), lambda: None
    )
    made.open_loop()
    with pytest.raises(RuntimeError, match="ours"):
        made.ended()
