"""Families of chains in notation, such as `draft:4/target`, that experiments and benchmarks run."""

from collections.abc import Collection, Sequence
from itertools import combinations

from ..policies.chain_notation import ChainSpec


def chain(members: Sequence[str], windows: Sequence[int]) -> str:
    """Members from smallest to target, each but the last with its window."""
    return str(ChainSpec(members=tuple(members), windows=tuple(windows)))


def two_levels(drafters: Sequence[str], target: str, windows: Sequence[int]) -> list[str]:
    """Every drafter at every window."""
    return [chain((drafter, target), (window,)) for drafter in drafters for window in windows]


def three_levels(
    below: Sequence[str],
    target: str,
    *,
    lower: Sequence[int],
    upper: Sequence[int],
    verifying: Collection[str] | None = None,
) -> list[str]:
    """Every pair of members below the target, its upper one among `verifying` if given, at every pair of windows."""
    return [
        chain((low, high, target), windows)
        for low, high in combinations(below, 2)
        if verifying is None or high in verifying
        for windows in ((n, m) for n in lower for m in upper)
    ]
