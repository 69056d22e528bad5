"""Events of one instant in an order of their own: SimPy's, with a rank.

Snapshots for routers come first, then arrivals in the order of the workload, then replicas by index.
"""

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

SNAPSHOT, ARRIVALS = EventPriority(-1), EventPriority(0)


def rank_of(replica: int) -> EventPriority:
    """Rank of what the replica at an index does."""
    return EventPriority(ARRIVALS + 1 + replica)


class RankedEvent(simpy.Event):
    """An event that happens; of those of one instant that of the smallest rank comes first."""

    _ok = True
    _value = None

    def __init__(
        self, env: simpy.Environment, at_ps: int, rank: EventPriority, do: Callable[[simpy.Event], None] | None = None
    ) -> None:
        """Let it happen.

        Args:
            env: of the run.
            at_ps: when, not before the events that have happened.
            rank: at that instant.
            do: is called then, with the event; None: a process waits for it.
        """
        super().__init__(env)
        if do is not None:
            assert self.callbacks is not None
            self.callbacks.append(do)
        env.schedule(self, rank, at_ps - env.now)

    def cancel(self) -> None:
        """It happens to nobody."""
        self.callbacks = []
