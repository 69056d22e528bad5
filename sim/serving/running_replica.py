"""A replica, and how far it has run."""

from ...traces.workloads.arrival import Arrival
from ...traces.workloads.exact_seconds import MOST_PS
from .served_replica import ServedReplica

NEVER_PS = 2 * MOST_PS  # later than any run


class RunningReplica:
    """Lets a replica run, from one end of what it planned to the next, and no further than asked.

    Args:
        replica: which.

    Attributes:
        next_ps: when it does something next: what runs ends, or a request wakes it up. NEVER_PS while it has nothing to
            do, and once it has failed.
    """

    __slots__ = ("_busy", "next_ps", "replica")

    def __init__(self, replica: ServedReplica) -> None:
        self.replica = replica
        self.next_ps = NEVER_PS
        self._busy = False

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes, after all that the replica has done before."""
        self.replica.arrive(arrival, at_ps)
        # Of an idle one others may come at this instant before it looks; what runs may have been cut.
        self.next_ps = self.replica.end_ps if self._busy else at_ps

    def wake(self, at_ps: int) -> None:
        """If it has nothing to do it looks again."""
        if not self._busy:
            self.next_ps = at_ps

    def finish(self) -> int:
        """What runs has ended; returns when."""
        now_ps, self.next_ps = self.next_ps, NEVER_PS
        if self._busy:
            self._busy = False
            self.replica.commit()
        return now_ps

    def begin(self, now_ps: int) -> None:
        """Something else runs, if there is anything."""
        end_ps = self.replica.plan(now_ps)
        if end_ps is not None:
            self._busy = True
            self.next_ps = end_ps

    def catch_up(self, until_ps: int) -> None:
        """Do all that it does before an instant: `finish` and `begin`, over and over."""
        replica = self.replica
        while (now_ps := self.next_ps) < until_ps:
            self.next_ps = NEVER_PS
            if self._busy:
                self._busy = False
                replica.commit()
            end_ps = replica.plan(now_ps, until_ps)
            if end_ps is not None:
                self._busy = True
                self.next_ps = end_ps
