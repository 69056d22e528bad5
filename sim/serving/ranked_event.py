"""Events of one instant in an order of their own: SimPy's, with a rank."""

from typing import cast

import simpy
from simpy.events import EventPriority


class RankedEvent(simpy.Event):
    """An event; of those of one instant that of the smallest rank comes first."""

    def happen(self, delay_ps: int, rank: int) -> "RankedEvent":
        """Let it happen so many picoseconds from now."""
        self._ok = True
        self._value = None
        self.due_ps = cast(int, self.env.now) + delay_ps
        self.env.schedule(self, cast(EventPriority, rank), delay_ps)
        return self

    def instead(self) -> "RankedEvent":
        """Another event for whoever waits for this one, which then happens to nobody."""
        other = RankedEvent(self.env)
        other.callbacks, self.callbacks = self.callbacks, other.callbacks
        return other
