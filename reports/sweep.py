"""Chains by window and batch: the same comparison at several batches, as a grid of speed-ups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .conclusion import best_in_words
from .side_by_side import SideBySide
from .summary import Summary
from .tables.comparison import comparison_title, shared_remarks, shown_interval
from .tables.grid import Grid, table
from .tables.printed import Printed, flat_rows

BEST = "*"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Printed):
    """Chains compared at one or more batches; prints as `paceline compare --sweep` does.

    Attributes:
        meta: as of a comparison; `batch` is a list.
        chains: names of all chains asked for, each with the window of every member but the target.
        comparisons: by batch; chains whose seconds the cost does not know are not among the rows.
    """

    meta: dict[str, Any]
    chains: Mapping[str, Mapping[str, int]]
    comparisons: Mapping[int, SideBySide]

    def best(self, batch: int) -> str:
        """Name of the fastest chain at a batch."""
        comparison = self.comparisons[batch]
        return max(comparison.rows, key=comparison.output_tokens_per_s).policy

    def tables(self) -> Sequence[Grid]:
        """A row for each chain, a column for each batch."""
        return [sweep_table(self)]

    def lines(self) -> Sequence[str]:
        """For each batch which chain is best, or that the target alone is."""
        return [f"batch {batch:,}: {best_in_words(comparison)}" for batch, comparison in self.comparisons.items()]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md): `meta`, and one object per chain and batch."""
        return {"meta": self.meta, "sweep": self._cells()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each chain and batch; columns as in docs/compare.md, `sweep[]`, and `windows_MEMBER`."""
        return flat_rows(self._cells())

    def _cells(self) -> list[dict[str, Any]]:
        return [
            self._cell_to_json(batch, comparison, row)
            for batch, comparison in self.comparisons.items()
            for row in comparison.rows
        ]

    def _cell_to_json(self, batch: int, comparison: SideBySide, row: Summary) -> dict[str, Any]:
        kept = (
            "policy",
            "speed_up",
            "speed_up_ci",
            "speed_up_mean_of_requests",
            "output_tokens_per_s",
            "acceptance_length",
            "target_calls_per_token",
            "exact_share",
            "seeds",
        )
        figures = comparison.row_to_json(row)
        return {
            "batch": batch,
            "windows": dict(self.chains[row.policy]),
            "best": row.policy == self.best(batch),
            **{name: figures[name] for name in kept},
        }


def sweep_table(sweep: Sweep) -> Grid:
    """A row for each chain, a column for each batch; the fastest chain of a batch is marked."""
    batches = list(sweep.comparisons)
    best = [sweep.best(batch) for batch in batches]
    said = f"speed-up over the target alone at the same batch; {BEST} the fastest chain of a batch"
    return table(
        [
            {"chain": chain, **{f"batch {batch:,}": _cell(sweep, chain, batch) for batch in batches}}
            for chain in sweep.chains
        ],
        title=comparison_title(sweep.meta, next(iter(sweep.comparisons.values()))),
        remarks=[said, *shared_remarks(sweep.meta, sweep.comparisons.values())],
        bold={
            (row, column)
            for row, chain in enumerate(sweep.chains)
            for column, name in enumerate(best, start=1)
            if chain == name
        },
    )


def _cell(sweep: Sweep, chain: str, batch: int) -> str:
    comparison = sweep.comparisons[batch]
    row = next((row for row in comparison.rows if row.policy == chain), None)
    if row is None:
        return "- "
    speed_up = comparison.speed_up(row)
    mark = BEST if chain == sweep.best(batch) else " "
    if speed_up is None:
        return f"{comparison.output_tokens_per_s(row):,.1f} tokens/s{mark}"
    return f"{speed_up:.2f}x{shown_interval(comparison.speed_up_interval(row), '.2f')}{mark}"
