"""How far the ratios of a policy to the best static chain in hindsight move with a change of it."""

from dataclasses import dataclass
from statistics import fmean

from ..board.runs import Ratios
from ..cell import ArenaCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What came of a change, in the cells that were played with it and without.

    Attributes:
        cells: how many, >= 1.
        mean: ratio with the change.
        least: of these ratios.
        mean_before, least_before: without the change.
        lost_most: by what share the ratio of the cell that loses most falls; below 0 where every cell gains.
        lost_in: that cell.
    """

    cells: int
    mean: float
    least: float
    mean_before: float
    least_before: float
    lost_most: float
    lost_in: ArenaCell

    @property
    def mean_moves(self) -> float:
        """By what share the mean is another; above 0 where the change gains."""
        return self.mean / self.mean_before - 1.0


def worth_of(before: Ratios, after: Ratios) -> Worth | None:
    """What a change is worth; None where no cell was played with it and without.

    Args:
        before: ratios without the change.
        after: with it.
    """
    both = {cell: ratio for cell, ratio in after.items() if cell in before}
    if not both:
        return None
    losses = {cell: 1.0 - ratio / before[cell] for cell, ratio in both.items()}
    lost_in = max(losses, key=losses.__getitem__)
    return Worth(
        cells=len(both),
        mean=fmean(both.values()),
        least=min(both.values()),
        mean_before=fmean(before[cell] for cell in both),
        least_before=min(before[cell] for cell in both),
        lost_most=losses[lost_in],
        lost_in=lost_in,
    )
