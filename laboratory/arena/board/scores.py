"""What the leaderboard says of a policy in a line: of the cells of one side of the split."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import mean

from ..cell import ArenaCell
from .learning import LEARNT, ratios_after
from .runs import TARGET_ALONE, BoardRuns, Ratios

EVEN = 1e-9  # speeds that differ by less are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Of one policy over some cells, each ratio above 0.

    Attributes:
        policy: as it was named.
        ratios: to the best static chain, by cell.
        over_plain: to the target alone, by cell.
        learnt: to the best static chain after `LEARNT` tokens, by cell with as many that is not under arrivals.
        replayed: share of decisions that recordings hold, by cell that is not under arrivals.
        won: cells in which no lossless policy is faster.
        left_out: cells that it has no run in.
        lossy: whether it may write other text than the target.
    """

    policy: str
    ratios: dict[ArenaCell, float]
    over_plain: dict[ArenaCell, float]
    learnt: dict[ArenaCell, float]
    replayed: dict[ArenaCell, float]
    won: int
    left_out: int
    lossy: bool

    @property
    def mean(self) -> float | None:
        """Mean ratio to the best static chain; None without a cell."""
        return mean(self.ratios.values()) if self.ratios else None

    @property
    def share_won(self) -> float | None:
        """Of the cells that it has runs in; None without a cell."""
        return self.won / len(self.ratios) if self.ratios else None

    @property
    def mean_over_plain(self) -> float | None:
        """Mean ratio to the target alone; None without a cell."""
        return mean(self.over_plain.values()) if self.over_plain else None


def least(ratios: Ratios) -> tuple[ArenaCell | None, float | None]:
    """The cell of the least ratio, and it."""
    return min(ratios.items(), key=lambda item: item[1], default=(None, None))


def scores(runs: BoardRuns, cells: Collection[ArenaCell]) -> tuple[Score, ...]:
    """Of every ranked policy over some cells, the largest mean ratio first; those without a cell last."""
    fastest = _fastest(runs, cells)
    found = [_score(runs, policy, cells, fastest) for policy in runs.policies]
    return tuple(sorted(found, key=lambda score: -(score.mean or 0.0)))


def _score(runs: BoardRuns, policy: str, cells: Collection[ArenaCell], fastest: dict[ArenaCell, float]) -> Score:
    ratios = _within(runs.ratios(policy), cells)
    return Score(
        policy=policy,
        ratios=ratios,
        over_plain=_within(runs.ratios(policy, TARGET_ALONE), cells),
        learnt=_within(ratios_after(runs, policy, LEARNT), cells),
        replayed=_within(runs.replayed(policy), cells),
        won=sum(ratio >= fastest.get(cell, 0.0) * (1 - EVEN) for cell, ratio in ratios.items()),
        left_out=len(set(cells) - set(ratios)),
        lossy=runs.is_lossy(policy),
    )


def _fastest(runs: BoardRuns, cells: Iterable[ArenaCell]) -> dict[ArenaCell, float]:
    """The largest ratio to the best static chain that a lossless policy has, by cell."""
    found: dict[ArenaCell, float] = {}
    for policy in runs.lossless:
        for cell, ratio in _within(runs.ratios(policy), cells).items():
            found[cell] = max(ratio, found.get(cell, 0.0))
    return found


def _within(ratios: Ratios, cells: Iterable[ArenaCell]) -> dict[ArenaCell, float]:
    return {cell: ratios[cell] for cell in cells if cell in ratios}
