"""Runs of the same setting at several seeds as one row: the mean of each figure and its 95% interval."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...runs.serving.meta import ServingAbout, ServingMeta
from ..interval import Interval, mean_interval
from .metrics import ServingMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run and its figures.

    Attributes:
        folder: as it was named.
        meta: what was run.
        metrics: its figures.
        flat: the same by flat name, `ttft_s_mean`.
    """

    folder: str
    meta: ServingMeta
    metrics: ServingMetrics
    flat: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRow:
    """Runs that differ in their seed alone, at least one."""

    runs: tuple[MeasuredRun, ...]

    @property
    def about(self) -> ServingAbout:
        """What was run; its seed is that of the first run."""
        return self.runs[0].meta.about

    def mean(self, figure: str) -> float | None:
        """Mean over the runs of a figure by its flat name, `ttft_s_mean`; None where a run cannot say it."""
        values = self._values(figure)
        return None if values is None else sum(values) / len(values)

    def interval(self, figure: str) -> Interval | None:
        """The same with its 95% interval; None for one run, too."""
        values = self._values(figure)
        return None if values is None or len(values) < 2 else mean_interval(values)

    def _values(self, figure: str) -> list[float] | None:
        values = [run.flat.get(figure) for run in self.runs]
        known = [value for value in values if isinstance(value, int | float)]
        return known if len(known) == len(values) else None

    def to_json(self) -> dict[str, Any]:
        """Setting, each run's figures, and with several seeds the means and intervals of those that are numbers."""
        runs = [
            {"folder": run.folder, "seed": run.meta.about.seed, "stopped": run.meta.stopped, **run.metrics.to_json()}
            for run in self.runs
        ]
        intervals = {name: found for name in self.runs[0].flat if (found := self.interval(name)) is not None}
        return {
            **self.about.model_dump(exclude={"seed"}),
            "runs": runs,
            "mean": {name: found.mean for name, found in intervals.items()},
            "ci": {name: list(found.bounds) for name, found in intervals.items()},
        }


def seed_rows(runs: Sequence[MeasuredRun]) -> tuple[SeedRow, ...]:
    """The runs in rows, in the order of each row's first one.

    Raises:
        ValueError: a setting that was run twice at the same seed: their mean would count one draw twice.
    """
    rows: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        rows.setdefault(_setting(run.meta), []).append(run)
    for row in rows.values():
        _check_seeds(row)
    return tuple(SeedRow(runs=tuple(row)) for row in rows.values())


def _setting(meta: ServingMeta) -> str:
    """What two runs of one row have in common, as a text; notes may hold what was drawn."""
    about = meta.about.model_copy(update={"seed": 0, "notes": ()})
    blocks = [(one.name, [member.num_blocks for member in one.members]) for one in meta.replicas]
    return f"{about.model_dump_json()} {meta.members} {blocks}"


def _check_seeds(row: Sequence[MeasuredRun]) -> None:
    seeds = [run.meta.about.seed for run in row]
    if len(set(seeds)) < len(seeds):
        folders = ", ".join(run.folder for run in row)
        raise ValueError(f"runs of one setting must differ in their seed, got seeds {seeds} of {folders}")
