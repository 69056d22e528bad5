"""What a simulated run asks of a recording, whichever kind it is."""

from collections.abc import Iterator
from typing import Protocol

from ..policies.pool import Pool
from ..policies.session import Session
from ..policies.world import World
from ..traces.imported.rounds import RoundsTrace
from ..traces.trie import Trace
from .cost import CostModel
from .rounds_tables import RoundsTables
from .tables import TraceTables


class RecordedWorld(World, Protocol):
    """A world that replays a recording.

    Attributes:
        num_reanchored: per request, times replay resumed on the trunk after it had left the record.
        num_divergent: per closed request, committed tokens that differ from the trunk at their position, and
            positions that only one of the two texts has.
    """

    num_reanchored: dict[str, int]
    num_divergent: dict[str, int]

    def sessions(self) -> Iterator[Session]:
        """The requests in file order, each made when it is asked for."""
        ...


class Recording(Protocol):
    """A recording of either kind; `tables.TraceTables` and `rounds_tables.RoundsTables` are the two.

    Attributes:
        name: shown in tables.
        kind: "recorded", "synthetic" or "imported".
        pool: its members in level order.
        num_requests: at least 1.
    """

    name: str
    kind: str
    pool: Pool
    num_requests: int

    def world(self, cost: CostModel, *, seed: int, strict: bool) -> RecordedWorld:
        """A world that replays it.

        Args:
            cost: seconds of forwards.
            seed: of decisions that have to be modelled.
            strict: refuse what is not recorded instead of modelling it.
        """
        ...


def tables_of(trace: Trace | RoundsTrace) -> Recording:
    """A recording of either kind, ready for replay."""
    return RoundsTables(trace) if isinstance(trace, RoundsTrace) else TraceTables(trace)
