"""A closed loop: so many sessions at any time, the next of which begins when one has ended.

A request that nothing follows is a session of one, so with plain requests this is what benchmark clients of engines
call a concurrency: as many requests are in the system, as long as there are more.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from .arrival import Arrival, Turns


class Changing(Protocol):
    """What becomes of each request; see `workload.Changes`."""

    def begun(self, arrival: Arrival, at_ps: int) -> Arrival | None:
        """A request that begins then, whatever its time; None where that is too late."""
        ...

    def of_turn(self, arrival: Arrival, ended_ps: int) -> Arrival | None:
        """A request that follows what was then; likewise."""
        ...


class ClosedArrivals:
    """A run of the loop. Mutated by what its requests are told.

    Args:
        arrivals: what begins, one after another, whatever their times; read as they begin.
        changes: what becomes of each request.
        most: sessions at any time, >= 1.
    """

    def __init__(self, arrivals: Iterable[Arrival], changes: Changing, most: int) -> None:
        self._arrivals = iter(arrivals)
        self.changes = changes
        self._most = most

    def begin(self) -> Iterator[Arrival]:
        """The first request of each session that begins at 0; the others follow what ends."""
        for _ in range(self._most):
            found = self.next(0)
            if found is None:
                return
            yield found

    def next(self, at_ps: int) -> Arrival | None:
        """The session that begins now; None where there is none left, or it would be too late."""
        arrival = next(self._arrivals, None)
        found = None if arrival is None else self.changes.begun(arrival, at_ps)
        if arrival is None or found is None:
            return None
        return found._replace(turns=LoopTurns(_Session(self), arrival.turns))


class _Session:
    __slots__ = ("loop", "open")

    def __init__(self, loop: ClosedArrivals) -> None:
        self.loop = loop
        self.open = 1  # its requests that have not ended, those that are still to come among them


class LoopTurns:
    """What follows a request of a closed loop: its session, or after the last of that the next; implements `Turns`."""

    __slots__ = ("_inner", "_session", "depths")

    def __init__(self, session: _Session, inner: Turns | None) -> None:
        self._session = session
        self._inner = inner
        self.depths: tuple[int, ...] = () if inner is None else inner.depths

    def reached(self, depth: int, at_ps: int) -> list[Arrival]:
        """See `Turns`."""
        return [] if self._inner is None else self._followed(self._inner.reached(depth, at_ps), at_ps)

    def after(self, ended_ps: int) -> list[Arrival]:
        """See `Turns`."""
        session = self._session
        found = [] if self._inner is None else self._followed(self._inner.after(ended_ps), ended_ps)
        session.open -= 1
        if not session.open and (begun := session.loop.next(ended_ps)) is not None:
            found.append(begun)
        return found

    def _followed(self, turns: Sequence[Arrival], at_ps: int) -> list[Arrival]:
        """As they are changed; one that a horizon leaves out keeps its session open, as it would have."""
        self._session.open += len(turns)
        changed = ((one, self._session.loop.changes.of_turn(one, at_ps)) for one in turns)
        return [new._replace(turns=LoopTurns(self._session, one.turns)) for one, new in changed if new is not None]
