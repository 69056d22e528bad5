"""Seconds that nobody measured, for runs whose decisions have to be the same in both worlds."""

from collections.abc import Sequence

from ...traces.meta import CostTable
from .table import TableCost

MOST_NEW_TOKENS = 2**30 + 1  # of a forward; beyond any batch
PER_NEW_TOKEN = 2.0**-6


def made_up_cost(names: Sequence[str]) -> TableCost:
    """One second for a forward of the target, half of the next larger one's for each smaller model.

    Each further new token adds a 64th. All are binary fractions, so that sums are exact in whatever order they are
    taken, and no time is spent on the context, which the runtime's prices do not know.

    Args:
        names: of the models, smallest first.
    """
    return TableCost("made up", {name: _table(2.0**-below) for below, name in enumerate(reversed(names))})


def _table(seconds: float) -> CostTable:
    most = seconds * (1 + PER_NEW_TOKEN * (MOST_NEW_TOKENS - 1))
    return CostTable(new_tokens=(1, MOST_NEW_TOKENS), seconds=(seconds, most))
