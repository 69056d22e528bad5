"""Families of chains in notation, such as `draft:4/target`, that experiments and benchmarks run."""

from collections.abc import Sequence
from itertools import combinations, product

from ..decoding.pool import Pool
from ..policies.chain_notation import ChainSpec


def chain(members: Sequence[str], windows: Sequence[int]) -> str:
    """Members from smallest to target, each but the last with its window."""
    return str(ChainSpec(members=tuple(members), windows=tuple(windows)))


def two_levels(drafters: Sequence[str], target: str, windows: Sequence[int]) -> list[str]:
    """Every drafter at every window."""
    return [chain((drafter, target), (window,)) for drafter in drafters for window in windows]


def three_levels(pool: Pool, *, lower: Sequence[int], upper: Sequence[int]) -> list[str]:
    """Every pair of members below the target whose upper one can judge, at every pair of windows."""
    return [
        chain((low.name, high.name, pool.target), windows)
        for low, high in combinations(pool.members[:-1], 2)
        if high.verifies
        for windows in product(lower, upper)
    ]
