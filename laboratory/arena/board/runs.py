"""Runs of the arena as the leaderboard looks them up: by policy and cell, each beside the best static chain's.

A ratio of a cell is the mean over its seeds, each seed's runs among themselves. A mean over cells is arithmetic.
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import mean, median

from ..cell import ArenaCell
from ..played import BEST_STATIC, Played

TARGET_ALONE = "plain"
OURS = "specrouter"
ORACLES = ("oracle-window", "oracle-chain")
Ratios = Mapping[ArenaCell, float]


class BoardRuns:
    """Finished runs.

    Args:
        played: of any policies; those of `best-static` and `plain` are what others are compared with.

    Attributes:
        cells: that the best static chain was played in, in the order of the runs.
    """

    def __init__(self, played: Iterable[Played]) -> None:
        self._runs: dict[str, dict[tuple[ArenaCell, int], Played]] = {}
        for run in played:
            self._runs.setdefault(run.policy, {})[run.cell, run.seed] = run
        self.cells = tuple(dict.fromkeys(cell for cell, _ in self._runs.get(BEST_STATIC, {})))

    @property
    def policies(self) -> tuple[str, ...]:
        """Those that are ranked: neither the best static chain nor oracles."""
        return tuple(name for name in self._runs if name != BEST_STATIC and name.partition(",")[0] not in ORACLES)

    @property
    def lossless(self) -> tuple[str, ...]:
        """Those that are ranked and write the target's own text."""
        return tuple(name for name in self.policies if not self.is_lossy(name))

    def is_lossy(self, policy: str) -> bool:
        """Whether a policy may write other text than the target."""
        return any(run.lossy for run in self._runs[policy].values())

    def of(self, policy: str, cell: ArenaCell) -> tuple[Played, ...]:
        """The runs of a policy in a cell, by seed; none where it was left out."""
        return tuple(run for (where, _), run in self._runs.get(policy, {}).items() if where == cell)

    def ratios(self, policy: str, other: str = BEST_STATIC) -> Ratios:
        """Its tokens a second over another's, by cell that has both."""
        return self.compared(policy, other, lambda ours, theirs: ours.tokens_per_s / theirs.tokens_per_s)

    def compared(self, policy: str, other: str, ratio: Callable[[Played, Played], float | None]) -> Ratios:
        """The mean over seeds of a figure of two runs, by cell that has both and where the figure is not None."""
        theirs = self._runs.get(other, {})
        found: dict[ArenaCell, list[float]] = {}
        for place, run in self._runs.get(policy, {}).items():
            figure = ratio(run, theirs[place]) if place in theirs else None
            if figure is not None:
                found.setdefault(place[0], []).append(figure)
        return {cell: mean(figures) for cell, figures in found.items()}

    def replayed(self, policy: str) -> Ratios:
        """Share of its decisions that the recording holds, of the seed with least of them, by cell that says it."""
        found: dict[ArenaCell, float] = {}
        for (cell, _), run in self._runs.get(policy, {}).items():
            if run.exact_share is not None:
                found[cell] = min(run.exact_share, found.get(cell, 1.0))
        return found

    def think_us(self, policy: str) -> float | None:
        """Microseconds that it thinks for a step, the median over its runs; None where none was timed."""
        known = [run.think_us for run in self._runs[policy].values() if run.think_us is not None]
        return median(known) if known else None

    def same_share(self, policy: str) -> float | None:
        """Share of its tokens that are the target's own, the mean over runs that say it; None where none does."""
        known = [run.same_share for run in self._runs[policy].values() if run.same_share is not None]
        return mean(known) if known else None

    def divergences(self, policy: str) -> float:
        """Tokens in a thousand that differ from the target's text, over all runs that count them."""
        counted = [run for run in self._runs[policy].values() if run.divergences is not None]
        return 1e3 * sum(run.divergences or 0 for run in counted) / max(sum(run.tokens for run in counted), 1)
