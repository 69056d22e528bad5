"""Requests at their times, or so many at a time: who sends what when. A thread for each request under way."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from threading import Condition, Thread
from typing import Protocol

from ..traces.workloads.arrival import Arrival
from ..traces.workloads.exact_seconds import PS_PER_S
from .clock import Clock
from .exchange import Exchange

_LOOK_S = 0.05  # between two looks at interrupts
_END_S = 5.0  # that a cut connection takes at most to be noticed

# Sends a request that was due at a time, picoseconds, and waits for its answer.
Send = Callable[[Arrival, int], Exchange]


class Stop(Protocol):
    """Says whether to stop sending."""

    def heard(self) -> bool:
        """Whether an interrupt came."""
        ...


class Load:
    """Sends the requests of a workload and gathers their answers. Final.

    Args:
        arrivals: by time.
        send: see `Send`; called in threads.
        clock: of the run.
        stop: no request is sent after it was heard.
        on_ended: called for each request that ended, in any thread, one at a time.
    """

    def __init__(
        self, arrivals: Sequence[Arrival], send: Send, clock: Clock, stop: Stop, on_ended: Callable[[], None]
    ) -> None:
        self._send, self._clock, self._stop, self._on_ended = send, clock, stop, on_ended
        self._coming: list[tuple[int, int, Arrival]] = []
        self._count = 0
        self._changed = Condition()
        self._found: list[Exchange] = []
        self._running = 0
        self._threads: list[Thread] = []
        self._broken: BaseException | None = None
        for arrival in arrivals:
            self._add(arrival)

    def open_loop(self) -> None:
        """Send each request when it is due, however many are under way; returns when all ended, or at a stop."""
        while (arrival := self._next_due()) is not None:
            self._start(partial(self._serve, arrival, arrival.arrives_ps))

    def closed_loop(self, concurrency: int) -> None:
        """Keep so many under way: one is sent when one ended, whatever its time; waits within sessions are kept.

        Args:
            concurrency: requests at a time, >= 1.
        """
        for _ in range(concurrency):
            self._start(self._work)
        with self._changed:
            while self._running and not self._stop.heard():
                self._changed.wait(_LOOK_S)

    def ended(self) -> list[Exchange]:
        """Wait until threads have noticed that their connections were cut; all requests, as they were sent.

        Raises:
            BaseException: what a thread raised; failed requests raise nothing.
        """
        for thread in self._threads:
            thread.join(_END_S)
        if self._broken is not None:
            raise self._broken
        with self._changed:
            return sorted(self._found, key=lambda one: (one.seen.sent_at_ps, one.seen.request_id))

    def _add(self, arrival: Arrival) -> None:
        self._count += 1
        heappush(self._coming, (arrival.arrives_ps, self._count, arrival))

    def _next_due(self) -> Arrival | None:
        """The next request, at its time; None when there are no more, or at a stop."""
        with self._changed:
            while not self._stop.heard() and self._broken is None:
                if not self._coming:
                    if not self._running:
                        return None
                    self._changed.wait(_LOOK_S)
                    continue
                left_s = (self._coming[0][0] - self._clock.now_ps()) / PS_PER_S
                if left_s <= 0:
                    return heappop(self._coming)[2]
                self._changed.wait(min(left_s, _LOOK_S))
        return None

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by `ended`, in the thread of the run
                self._broken = error
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        with self._changed:
            self._running += 1
        thread = Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """Of a closed loop: one session after another, each request when the one before it has ended."""
        for arrival in iter(self._take, None):
            assert arrival is not None
            for request in self._session(arrival):
                self._serve(request, self._clock.now_ps(), keep=False)

    def _take(self) -> Arrival | None:
        with self._changed:
            return heappop(self._coming)[2] if self._coming and not self._stop.heard() else None

    def _session(self, arrival: Arrival) -> Iterator[Arrival]:
        """A request and those that follow it, each after its wait."""
        waiting = [(0, 0, arrival)]
        count = 0
        while waiting and not self._stop.heard():
            due_ps, _, request = heappop(waiting)
            with self._changed:
                while (left_s := (due_ps - self._clock.now_ps()) / PS_PER_S) > 0 and not self._stop.heard():
                    self._changed.wait(min(left_s, _LOOK_S))
            if self._stop.heard():
                return
            yield request
            for following in request.turns.after(self._clock.now_ps()) if request.turns is not None else ():
                count += 1
                heappush(waiting, (following.arrives_ps, count, following))

    def _serve(self, arrival: Arrival, due_at_ps: int, *, keep: bool = True) -> None:
        """One request; those that follow it come to the others, if they are kept."""
        found = self._send(arrival, due_at_ps)
        with self._changed:
            self._found.append(found)
            if found.seen.ended_at_ps is not None:
                self._on_ended()
                if keep and arrival.turns is not None:
                    for following in arrival.turns.after(found.seen.ended_at_ps):
                        self._add(following)
            self._changed.notify_all()
