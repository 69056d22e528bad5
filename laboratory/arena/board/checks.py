"""What SpecRouter is held to in every reporting cell, and where it misses.

At least 0.97 of the best static chain in cells of 5,000 tokens and more, never more than 1% below the target alone,
never more than 2% below any other general policy, and at least 0.93 of the best static chain after 1,000 tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..cell import ArenaCell
from ..played import BEST_STATIC
from .learning import LEARNT, ratios_after, ratios_beyond
from .runs import OURS, TARGET_ALONE, BoardRuns

LONG = 5_000  # tokens of a cell that the first check is for
STATIC, PLAIN, OTHERS, EARLY = "0.97 of static", "0.99 of plain", "0.98 of others", f"0.93 after {LEARNT:,}"
LIMITS = {STATIC: 0.97, PLAIN: 0.99, OTHERS: 0.98, EARLY: 0.93}
LEAST_MEAN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCheck:
    """Of one cell.

    Attributes:
        cell: where.
        chain: the best static one, at the recorded order of requests.
        ratios: by check that applies to the cell; a check without a figure does not apply.
        other: the fastest other general policy, "" without one.
        beyond: ratio to the best static chain after the first 1,000 tokens; None where nothing says it.
    """

    cell: ArenaCell
    chain: str
    ratios: dict[str, float]
    other: str
    beyond: float | None

    @property
    def missed(self) -> tuple[str, ...]:
        """The checks whose limit it stays below."""
        return tuple(check for check, ratio in self.ratios.items() if ratio < LIMITS[check])


def checks(runs: BoardRuns, cells: Iterable[ArenaCell]) -> tuple[CellCheck, ...]:
    """Of all cells that SpecRouter has a run in."""
    static, plain = runs.ratios(OURS), runs.ratios(OURS, TARGET_ALONE)
    early, beyond = ratios_after(runs, OURS, LEARNT), ratios_beyond(runs, OURS)
    others = {name: runs.ratios(name) for name in runs.lossless if _is_other(name)}
    found = []
    for cell in cells:
        if cell not in static:
            continue
        best = runs.of(BEST_STATIC, cell)[0]
        name, theirs = max(
            ((name, ratios[cell]) for name, ratios in others.items() if cell in ratios),
            key=lambda item: item[1],
            default=("", None),
        )
        figures = {
            STATIC: static[cell] if best.tokens >= LONG else None,
            PLAIN: plain.get(cell),
            OTHERS: static[cell] / theirs if theirs else None,
            EARLY: early.get(cell),
        }
        found.append(
            CellCheck(
                cell=cell,
                chain=best.chain,
                ratios={check: figure for check, figure in figures.items() if figure is not None},
                other=name,
                beyond=beyond.get(cell),
            )
        )
    return tuple(found)


def _is_other(policy: str) -> bool:
    return policy != TARGET_ALONE and policy.partition(",")[0] != OURS
