"""The uncertainty of served runs by their cost: the same requests, served again at the ends of the cost's range.

A policy and the target alone are compared end by end, so that common changes cancel. Means over seeds are shifted as
the first seed's run is.
"""

from collections.abc import Sequence
from typing import Any

from .intervals import Interval, geometric_interval, paired
from .serving_tables import SeedRow, cells_between, columns, reject_alike
from .tables import Grid, table

IN_SYSTEM_S = "in_system_s"
# The figures whose range is printed.
SHOWN = columns("tokens/s", "TTFT ms", "TTFT p99", "TPOT ms", "TPOT p99")
ENDS_REMARK = (
    "range of cost: the first seed's requests served again, with plain steps and with rounds that take as little and "
    "as much as nine in ten measurements did"
)


def ranges_table(rows: Sequence[tuple[dict[str, str], SeedRow]], gains: Sequence[str] | None = None) -> Grid | None:
    """For each row, named by headings, the ranges of its figures, and of its gain if known.

    None where no row was served at the ends of its cost. `gains` are cells of the rows.
    """
    cells = [
        named | ({} if gains is None else {"gain": gains[place]}) | cells_between(row, SHOWN)
        for place, (named, row) in enumerate(rows)
    ]
    known = [one for one, (_, row) in zip(cells, rows, strict=True) if row.ends]
    texts = {heading for named, _ in rows for heading in named}
    return table(known, texts=texts, title="range of cost", remarks=[ENDS_REMARK]) if known else None


def gain(row: SeedRow, alone: SeedRow) -> Interval | None:
    """Mean time in the system under the target alone over that under a policy, seed by seed, with its 95% interval.

    The mean is of logarithms; None where either is unknown at a seed, or one rejected more requests than the other.
    """
    if row.mean(IN_SYSTEM_S) is None or alone.mean(IN_SYSTEM_S) is None:
        return None
    if not reject_alike(row.rejected, alone.rejected):
        return None
    both = paired(alone.by_seed(IN_SYSTEM_S), row.by_seed(IN_SYSTEM_S))
    if any(own <= 0 or other <= 0 for other, own in both):
        return None
    return geometric_interval([other / own for other, own in both])


def gain_range(row: SeedRow, alone: SeedRow) -> tuple[float, float] | None:
    """The gain at the ends of the cost's range, the same end for both; None if unknown."""
    here = gain(row, alone)
    return None if here is None else ratio_range(here, alone, row, IN_SYSTEM_S)


def ratio_range(here: Interval, ours: SeedRow, theirs: SeedRow, figure: str) -> tuple[float, float] | None:
    """The ratio of a figure of two rows at the ends of their costs' ranges, the same end for both; None if unknown.

    `here` is the ratio at the costs themselves.
    """
    if len(ours.ends) != len(theirs.ends) or not ours.ends:
        return None
    both = list(zip(_at_first(ours, figure), _at_first(theirs, figure), strict=True))
    if not all(own and other for own, other in both):
        return None
    first, *ends = (own / other for own, other in both)
    moved = [1.0, *(ratio / first for ratio in ends)]
    return here.mean * min(moved), here.mean * max(moved)


def is_better_at_ends(row: SeedRow, other: SeedRow, figure: str, *, most: bool) -> bool:
    """Whether a row is at least as good as another at every end of the cost, at the first seed; True without ends."""
    both = zip(row.ends, other.ends, strict=True)
    values = [(own.flat[figure], theirs.flat[figure]) for own, theirs in both]
    return all((own >= theirs) if most else (own <= theirs) for own, theirs in values)


def _at_first(row: SeedRow, figure: str) -> list[Any]:
    """A figure of the first seed's run at the cost itself, then at each end; None where it is unknown."""
    return [run.flat.get(figure) for run in (row.runs[0], *row.ends)]
