"""Effects of changes on a served workload: each alone and all together, relative to the same run without them.

Ratios are taken seed by seed, of the same requests; means and intervals are of logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Any

from .cost_range import ENDS_REMARK, ratio_range
from .intervals import Interval, enough_values, geometric_interval, over_product, paired, with_ends
from .load import COMPARED, OF_ALL, not_told_apart
from .serving import Promises
from .serving_tables import PROMISED, SeedRow, Shown, cells_of, columns, reject_alike, served_title, styled, unserved
from .tables import Grid, Printed, between, flat_rows, table

TOGETHER, TERM = "all together", "over the product"
LEADING = "in_system_s"  # the figure of the last lines
SHOWN = columns("tokens/s", "in system ms", "TTFT ms", "TTFT p99", "TPOT ms", "E2E p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A run with changes."""

    name: str  # the change as typed, or `TOGETHER`
    row: SeedRow


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhatIf(Printed):
    """Changes alone and together; prints as `paceline whatif` does."""

    base: SeedRow  # without changes
    alone: tuple[Changed, ...]  # at least one, in the order asked
    together: Changed | None  # None if there is only one
    promised: Promises  # service levels by class
    meta: dict[str, Any]  # what was compared on: workload, cluster, trace
    remarks: tuple[str, ...]  # remarks that readers of the figures need, a line each

    @property
    def runs(self) -> tuple[Changed, ...]:
        """Each change, then all together."""
        return self.alone if self.together is None else (*self.alone, self.together)

    def ratio(self, changed: Changed, figure: str) -> Interval | None:
        """A figure over that without changes, by its flat name.

        None where one is 0 or unknown, and of times where more or fewer requests were rejected.
        """
        found = self._ratios(changed, figure)
        return None if found is None else geometric_interval(found)

    def range_of_cost(self, changed: Changed, figure: str) -> tuple[float, float] | None:
        """The same ratio at the ends of the costs' ranges; None if unknown."""
        here = self.ratio(changed, figure)
        return None if here is None else ratio_range(here, changed.row, self.base, figure)

    def term(self, figure: str) -> Interval | None:
        """The effect of all together over the product of each one's alone: 1 if they are independent."""
        if self.together is None:
            return None
        whole, parts = self._ratios(self.together, figure), [self._ratios(one, figure) for one in self.alone]
        known = [part for part in parts if part is not None]
        if whole is None or len(known) < len(parts):
            return None
        seeds = max(map(len, (whole, *known)))
        whole, *known = (one * seeds if len(one) == 1 else one for one in (whole, *known))
        return geometric_interval(over_product(whole, known))

    def _ratios(self, changed: Changed, figure: str) -> list[float] | None:
        """The ratios by seed; a single one, of a run that is not random, is used for every seed."""
        if not (changed.row.mean(figure) and self.base.mean(figure)):
            return None
        if figure not in OF_ALL and not reject_alike(changed.row.rejected, self.base.rejected):
            return None
        pairs = paired(changed.row.by_seed(figure), self.base.by_seed(figure))
        known = all(ours > 0 and theirs > 0 for ours, theirs in pairs)
        return [ours / theirs for ours, theirs in pairs] if known else None

    def tables(self) -> Sequence[Grid]:
        names = ("workload", "policy", "cluster", "trace")
        title = served_title(self.meta, self.promised.in_words(), names=names)
        remarks = [*self.remarks, *self._unserved()]
        if len(self.base.runs) > 1:
            remarks.append("±, and in brackets: 95% interval over seeds; at one seed all met the same requests")
        cells: list[dict[str, str]] = [{"change": "none"} | cells_of(self.base, self._shown(), "")]
        base = table(cells, title=title, remarks=remarks)
        rows = [
            {"change": one.name} | {head: self._cell(self.ratio(one, name)) for head, name in self._figures()}
            for one in self.runs
        ]
        if self.together is not None:
            rows.append({"change": TERM} | {head: self._cell(self.term(name)) for head, name in self._figures()})
        ends = [len(self.alone) - 1] if self.together is not None else []
        found = [base, table(rows, title="times what it is without changes", lines=ends)]
        if any(self.range_of_cost(one, name) is not None for one in self.runs for _, name in self._figures()):
            cell = partial(between, style=".3f", unknown="-")
            ranges = [
                {"change": one.name} | {head: cell(self.range_of_cost(one, name)) for head, name in self._figures()}
                for one in self.runs
            ]
            found.append(table(ranges, title="range of cost, times what it is without changes", remarks=[ENDS_REMARK]))
        return found

    def _unserved(self) -> list[str]:
        """Requests that are in no latency, a line for each run without some."""
        found = [("without changes", self.base), *((one.name, one.row) for one in self.runs)]
        return [f"{name}: {said}" for name, row in found if (said := unserved(row.runs))]

    def _shown(self) -> Shown:
        return {**SHOWN, **(PROMISED if self.promised.any else {})}

    def _figures(self) -> Sequence[tuple[str, str]]:
        return [(head.removesuffix(" ms"), name) for head, (name, _) in self._shown().items()]

    @staticmethod
    def _cell(ratio: Interval | None) -> str:
        return "-" if ratio is None else with_ends(ratio, styled(".3f"))

    def lines(self) -> Sequence[str]:
        known = [(one, ratio) for one in self.runs if (ratio := self.ratio(one, LEADING)) is not None]
        times = ", ".join(f"{one.name} {ratio.mean:.3f}x" for one, ratio in known)
        said = [f"mean time in the system: {times}"] if known else []
        others = ", ".join(one.name for one in self.runs if not reject_alike(one.row.rejected, self.base.rejected))
        said += [f"times cannot be compared where more or fewer requests are rejected: {others}"] if others else []
        open_to = [one for one, ratio in known if ratio.half_width and ratio.low <= 1 <= ratio.high]
        if open_to:
            logs = [[log(ratio) for ratio in self._ratios(one, LEADING) or ()] for one in open_to]
            enough = min((number for one in logs if (number := enough_values(one)) is not None), default=None)
            names = [one.name for one in open_to]
            said.append(not_told_apart(names, "no change", seeds=max(map(len, logs)), enough=enough))
        certain = [one for one, _ in known if one not in open_to]
        ranges = [(one.name, self.range_of_cost(one, LEADING)) for one in certain]
        # Ends are alike where a change does nothing, which is certain.
        by_cost = [name for name, ends in ranges if ends is not None and ends[0] <= 1 <= ends[1] != ends[0]]
        said += [f"{', '.join(by_cost)} cannot be told apart from no change by this cost"] if by_cost else []
        term = self.term(LEADING)
        return said if term is None else [*said, _of_term(term)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving.md)."""
        found = {
            **self.meta,
            **self.promised.to_json(),
            "base": self.base.to_json(),
            "changes": [
                {"change": one.name, "ratio": self._json_of(one), "range": self._ranges_of(one)} for one in self.runs
            ],
            "conclusion": list(self.lines()),
            "remarks": [*self.remarks, *self._unserved()],
        }
        terms = {name: self.term(name) for name in COMPARED}
        return {**found, "over_product": {name: one.to_json() for name, one in terms.items() if one is not None}}

    def _json_of(self, changed: Changed) -> dict[str, Any]:
        ratios = {name: self.ratio(changed, name) for name in COMPARED}
        return {name: one.to_json() for name, one in ratios.items() if one is not None}

    def _ranges_of(self, changed: Changed) -> dict[str, list[float]]:
        return {name: list(ends) for name in COMPARED if (ends := self.range_of_cost(changed, name)) is not None}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each change, and for all together; a column for each figure's ratio."""
        rows = [
            {"change": one.name, **{name: ratio["mean"] for name, ratio in self._json_of(one).items()}}
            for one in self.runs
        ]
        return flat_rows(rows)


def _of_term(term: Interval) -> str:
    said = f"all together over the product of each alone: {with_ends(term, styled('.3f'))}"
    if term.low <= 1 <= term.high or abs(term.mean - 1) < 1e-9:  # so that a rounding error does not look like one
        return f"{said}; that they change each other cannot be told"
    return f"{said}; together they are {'quicker' if term.mean < 1 else 'slower'} than that"
