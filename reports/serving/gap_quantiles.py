"""Exact quantiles of gaps between outputs, from runs of gaps and without one value per gap.

Letters: N runs, K ranks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...runs.log import Columns
from ...runs.serving.gap_sums import total_gaps

Integers = NDArray[np.int64]


def gap_percentiles(gaps: Columns, percents: Sequence[int]) -> list[float]:
    """Percentiles in picoseconds, interpolated linearly between neighbours in order of size, as numpy's default does.

    Args:
        gaps: runs as `runs.serving.log.ServingLog` has them, at least one.
        percents: whole numbers in [0, 100].
    """
    last = total_gaps(gaps) - 1
    places = [divmod(percent * last, 100) for percent in percents]
    ranks = sorted({rank for place, _ in places for rank in (place, min(place + 1, last))})
    found = dict(zip(ranks, _Runs(gaps).by_size(ranks), strict=True))
    ends = [(found[place], found[min(place + 1, last)], rest) for place, rest in places]
    return [low + (high - low) * rest / 100 for low, high, rest in ends]


class _Runs:
    """Rising runs of gaps.

    Attributes:
        low, high: `[N]` the least and the greatest gap of each run.
        step: `[N]` between a run's gaps, >= 1; of no meaning in runs of one.
        count: `[N]` different gaps of a run.
        rows: `[N]` how often each of them was seen.
    """

    def __init__(self, gaps: Columns) -> None:
        first, increment, count, rows = (gaps[name] for name in ("first_ps", "increment_ps", "count", "rows"))
        last = first + increment * (count - 1)
        level = increment == 0
        self.low, self.high = np.minimum(first, last), np.maximum(first, last)
        self.step = np.where(level, 1, np.abs(increment))
        self.count = np.where(level, 1, count)
        self.rows = np.where(level, rows * count, rows)

    def by_size(self, ranks: Sequence[int]) -> list[int]:
        """`[K]` the gaps of these ranks, 0 for the least one."""
        # Were each gap as short as the least of its run, that of any rank would be no longer; and the other way about.
        least, most = self._as_if_all(self.low, ranks), self._as_if_all(self.high, ranks)
        return [self._of_rank(rank, *ends) for rank, *ends in zip(ranks, least, most, strict=True)]

    def _as_if_all(self, values: Integers, ranks: Sequence[int]) -> list[int]:
        order = np.argsort(values)
        up_to = np.cumsum((self.count * self.rows)[order])
        found: list[int] = values[order[np.searchsorted(up_to, ranks, side="right")]].tolist()
        return found

    def _of_rank(self, rank: int, least: int, most: int) -> int:
        """The gap of a rank, which lies in [least, most]: halved until one is left."""
        below = int((self.count * self.rows)[self.high < least].sum())
        open_to_both = (self.high >= least) & (self.low <= most)
        low, step, count, rows = (part[open_to_both] for part in (self.low, self.step, self.count, self.rows))
        while least < most:
            middle = (least + most) // 2
            up_to = np.clip((middle - low) // step + 1, 0, count)
            if below + int((up_to * rows).sum()) > rank:
                most = middle
            else:
                least = middle + 1
        return least
