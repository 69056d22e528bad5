"""A recording as one process of the arena keeps it: tables and costs are made once, for all that is played on it."""

from ....decoding.policy import Policy
from ....policies.lossless.plain import Plain
from ....sim.cost.base import CostModel
from ....sim.replay_tables import ReplayTables, tables_of
from ....sim.simulate import Scenario, simulate
from ....traces.recording import Recording
from ..ladders import ladder
from ..loads import MOST_RUNNING
from .order import reordered

PLAIN = "plain"


class RecordingStage:
    """Everything that runs on a recording share. Final.

    Args:
        recording: as it was read.

    Attributes:
        recording: in its recorded order.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._tables: dict[int, ReplayTables] = {}
        self._costs: dict[str, CostModel] = {}
        self._capacities: dict[str, float] = {}

    def tables(self, seed: int) -> ReplayTables:
        """Ready for replay, in the order of a seed."""
        if seed not in self._tables:
            self._tables[seed] = tables_of(reordered(self.recording, seed))
        return self._tables[seed]

    def cost(self, name: str) -> CostModel:
        """Seconds of a ladder; raises ArgumentError for a name that is none."""
        if name not in self._costs:
            self._costs[name] = ladder(name).cost(self.recording)
        return self._costs[name]

    def capacity_per_s(self, name: str) -> float:
        """Output tokens a second of the target alone at a ladder, with `MOST_RUNNING` requests at a time."""
        if name not in self._capacities:
            tables = self.tables(0)
            target_alone: Policy = Plain(tables.pool)
            log = simulate(Scenario(tables=tables, cost=self.cost(name), batch=MOST_RUNNING), target_alone, PLAIN)
            seconds = float(log.requests["finished_at_s"].max())
            self._capacities[name] = int(log.requests["emitted_tokens"].sum()) / seconds
        return self._capacities[name]
