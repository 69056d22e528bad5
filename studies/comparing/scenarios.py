"""What a comparison runs under at each seed, and the what-if on acceptance that is drawn anew for each."""

from collections.abc import Mapping
from dataclasses import replace

from ...sim.cost.base import CostModel
from ...sim.replay_tables import tables_of
from ...sim.simulate import Scenario
from ...traces.recording import Recording


class Scenarios:
    """The same scenario at every seed; with a shift of acceptance each seed has a recording of its own.

    Args:
        recording: as it is, without what-ifs.
        first: at the first seed; its tables are those of `recording`.
        shifts: by drafter, change of its rate of acceptance.
        num_seeds: >= 1.

    Attributes:
        shifted: whether decisions of drafters are turned over by chance.
    """

    def __init__(self, recording: Recording, first: Scenario, shifts: Mapping[str, float], num_seeds: int) -> None:
        self.first = first
        self.shifts = dict(shifts)
        self.num_seeds = num_seeds
        self.shifted = bool(shifts)
        self._recording = recording
        self._made: dict[int, Scenario] = {}

    def at(self, index: int) -> Scenario:
        """At the seed `index` after the first, 0 to `num_seeds` - 1; raises ValueError for a shift out of range."""
        if index not in self._made:
            seed = self.first.seed + index
            tables = self.first.tables
            if self.shifted:
                tables = tables_of(self._recording.shifted(self.shifts, seed=seed))
            self._made[index] = replace(self.first, tables=tables, seed=seed)
        return self._made[index]

    def with_batch(self, batch: int) -> "Scenarios":
        """With so many requests running at a time."""
        return Scenarios(self._recording, replace(self.first, batch=batch), self.shifts, self.num_seeds)

    def with_cost(self, cost: CostModel) -> "Scenarios":
        """The same seeds at other seconds; recordings that were shifted are not shifted anew."""
        other = Scenarios(self._recording, replace(self.first, cost=cost), self.shifts, self.num_seeds)
        other._made = {index: replace(scenario, cost=cost) for index, scenario in self._made.items()}
        return other
