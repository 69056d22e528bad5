"""Regret: how much longer policies take than oracles, which plan each answer from the recording.

Planning takes half a minute for a cell, so oracles are played in some cells only: one request at a time at two ladders,
on recordings of every continuation, in the recorded order.
"""

from collections.abc import Collection, Iterable, Sequence
from statistics import mean

from ....policies.spec import PolicySpec
from ..cell import ArenaCell
from .runs import ORACLES, BoardRuns

LADDERS, LOAD = ("even", "steep"), "batch-1"
IMPORTED = ("specbench", "hsd")


def oracle_cells(cells: Iterable[ArenaCell]) -> tuple[ArenaCell, ...]:
    """Those of the cells that oracles are played in."""
    return tuple(
        cell for cell in cells if cell.ladder in LADDERS and cell.load == LOAD and cell.recording not in IMPORTED
    )


def oracles() -> tuple[PolicySpec, ...]:
    """The oracles that are played."""
    return tuple(map(PolicySpec.parse, ORACLES))


def regrets(runs: BoardRuns, policies: Sequence[str], oracle: str, cells: Collection[ArenaCell]) -> dict[str, float]:
    """By policy the seconds that it takes more than an oracle, as a share of the oracle's, in the mean over cells.

    A policy that none of these cells has beside the oracle is not in it.
    """
    found = {}
    for policy in policies:
        over = runs.compared(policy, oracle, lambda ours, best: ours.seconds / ours.tokens * best.tokens / best.seconds)
        known = [ratio for cell, ratio in over.items() if cell in cells]
        if known:
            found[policy] = mean(known) - 1
    return found
