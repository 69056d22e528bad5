"""What a comparison of policies found, ready to be printed, shown in a notebook, or taken on as rows."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .conclusion import conclusion
from .device_range import DeviceRange, device_range_table
from .quality import Quality
from .regret import Regret
from .side_by_side import SideBySide
from .tables.comparison import comparison_table, detail_tables
from .tables.grid import Grid
from .tables.printed import Printed, flat_rows
from .tables.quality import quality_table
from .tables.tags import regret_table, tag_table
from .tags import ByTag


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Printed):
    """Policies compared on one recording; prints as `paceline compare` does.

    Attributes:
        runs: the policies side by side.
        oracles: policies that see ahead, which nobody can run; none of them is called best.
        by_tag: the same by tag, in the order of the policies; None if it was not asked for.
        regret: what each policy loses against the oracle; None if it was not asked for.
        on_device: figures between which those of another device lie; None if none was asked about.
    """

    runs: SideBySide
    oracles: tuple[str, ...] = ()
    by_tag: ByTag | None = None
    regret: Regret | None = None
    on_device: DeviceRange | None = None

    @property
    def meta(self) -> dict[str, Any]:
        """What was compared on: recording, cost, batch, seeds, what-ifs."""
        return self.runs.meta

    @property
    def best(self) -> str:
        """Name of the fastest policy that can be run."""
        return next(row.policy for row in self.runs.ranked() if row.policy not in self.oracles)

    def tables(self, *, detail: bool = False) -> Sequence[Grid]:
        """The fastest policy comes first; `detail`: also further figures, and by member."""
        found = [comparison_table(self.runs)]
        quality = quality_table(self.runs.ranked())
        found += [] if quality is None else [quality]
        found += detail_tables(self.runs) if detail else ()
        found += [] if self.on_device is None else [device_range_table(self.on_device)]
        found += [] if self.by_tag is None else [tag_table(self._ranked(self.by_tag))]
        found += [] if self.regret is None else [regret_table(self.regret, by_tag=self.by_tag is not None)]
        return found

    def lines(self) -> Sequence[str]:
        """Which policy is best, whether that is certain, and why another loses."""
        return [conclusion(self.runs, ruled_out=self.oracles)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md)."""
        views = {"by_tag": self.by_tag, "regret": self.regret, "on": self.on_device}
        return {**self.runs.to_json(), **{key: view.to_json() for key, view in views.items() if view is not None}}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy and the target alone, the fastest first; columns as in docs/compare.md, `policies[]`.

        An object becomes a column for each of its keys: `ttft_s_mean`.
        """
        rows = [self.runs.row_to_json(row) for row in self.runs.ranked()]
        unknown = {field.name: None for field in fields(Quality)}
        return flat_rows([{**row, "quality": row["quality"] or unknown} for row in rows])

    def _ranked(self, by_tag: ByTag) -> ByTag:
        names = [row.policy for row in self.runs.ranked() if row.policy in by_tag.policies]
        return replace(by_tag, policies={name: by_tag.policies[name] for name in names})
