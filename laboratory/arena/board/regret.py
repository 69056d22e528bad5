"""Regret: how much longer policies take than oracles, which plan each answer from the recording.

Planning takes up to a minute for a cell, so oracles are played in some cells only: one request at a time on recordings
of every continuation, in the recorded order.
"""

from collections.abc import Iterable, Sequence
from statistics import mean

from ....policies.spec import PolicySpec
from ..cell import ArenaCell
from .runs import ORACLES, BoardRuns

LADDER, LOAD = "even", "batch-1"
IMPORTED = ("specbench", "hsd")


def oracle_cells(cells: Iterable[ArenaCell]) -> tuple[ArenaCell, ...]:
    """Those of the cells that oracles are played in."""
    return tuple(
        cell for cell in cells if cell.ladder == LADDER and cell.load == LOAD and cell.recording not in IMPORTED
    )


def oracles() -> tuple[PolicySpec, ...]:
    """The oracles that are played."""
    return tuple(map(PolicySpec.parse, ORACLES))


def regrets(runs: BoardRuns, policies: Sequence[str], oracle: str) -> dict[str, float]:
    """By policy the seconds that it takes more than an oracle, as a share of the oracle's, in the mean over cells."""
    found = {}
    for policy in policies:
        over = runs.compared(policy, oracle, lambda ours, best: ours.seconds / ours.tokens * best.tokens / best.seconds)
        if over:
            found[policy] = mean(over.values()) - 1
    return found
