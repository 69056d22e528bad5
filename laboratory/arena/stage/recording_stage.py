"""A recording as one process of the arena keeps it: tables and costs are made once, for all that is played on it."""

from collections.abc import Sequence

from ....decoding.policy import Policy
from ....policies.lossless.plain import Plain
from ....sim.cost.base import CostModel
from ....sim.replay_tables import ReplayTables, tables_of
from ....sim.simulate import Scenario, simulate
from ....sim.tries.request_tables import RequestTables
from ....sim.tries.tables import TrieTables
from ....traces.forms import by_form
from ....traces.recording import Recording
from ....traces.tries.recording import TrieRecording
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
        self._tables = {0: tables_of(recording)}
        # Held, so that they are built once for all runs, whatever their order.
        self._held = by_form(recording, tries=self._all_requests, rounds=lambda _: ())
        self._costs: dict[str, CostModel] = {}
        self._capacities: dict[str, float] = {}

    def tables(self, seed: int) -> ReplayTables:
        """Ready for replay, in the order of a seed."""
        if seed not in self._tables:
            other = reordered(self.recording, seed)
            self._tables[seed] = by_form(other, tries=self._reordered, rounds=tables_of)
        return self._tables[seed]

    def _all_requests(self, tries: TrieRecording) -> Sequence[RequestTables]:
        tables = self._of_tries()
        return tuple(tables.of(request.request_id) for request in tries.requests)

    def _reordered(self, tries: TrieRecording) -> ReplayTables:
        return self._of_tries().reordered(tries)

    def _of_tries(self) -> TrieTables:
        tables = self._tables[0]
        assert isinstance(tables, TrieTables)
        return tables

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
