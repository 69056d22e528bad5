"""What a replica is to whoever drives it, however its steps are worked out."""

from typing import Protocol

from ...traces.workloads.arrival import Arrival
from .routers.dispatcher import WatchedReplica


class ServedReplica(WatchedReplica, Protocol):
    """A state machine that serves requests and knows no clock of its own.

    Whoever drives it calls `plan`, lets the time pass until `end_ps`, and calls `commit`; `arrive` at any time between.
    """

    @property
    def may_lag(self) -> bool:
        """Whether it may be let run later than the others: it shares nothing with them but the recorder."""
        ...

    @property
    def num_running(self) -> int:
        """Requests in the batch."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that were put back among them."""
        ...

    @property
    def num_emitted(self) -> int:
        """Tokens that came out."""
        ...

    @property
    def num_cycled(self) -> int:
        """Of these, those after the first pass of a recorded answer."""
        ...

    @property
    def num_modelled(self) -> int:
        """Decisions that were modelled rather than replayed."""
        ...

    @property
    def end_ps(self) -> int:
        """When what was planned ends; an arrival may let it end earlier."""
        ...

    def arrive(self, arrival: Arrival, at_ps: int) -> None:
        """A request comes; one that can never run is rejected."""
        ...

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """Decide what runs next.

        Args:
            now_ps: the instant.
            until_ps: what ends before may be done at once, since nobody looks earlier; that is then no more what runs.

        Returns:
            When it ends, >= `now_ps`; None: nothing is there to run.

        Raises:
            PolicyError: the policy broke the contract.
            UnrecordedContextError: strict, and a decision is not recorded.
            CostRangeError: an operation outside what the cost model knows.
        """
        ...

    def commit(self) -> None:
        """What was planned has run, to its end: requests, caches and the recorder learn of it."""
        ...

    def close_books(self, until_ps: int) -> None:
        """Tell the recorder what it is told once: the run ends then, and what runs may be half done."""
        ...
