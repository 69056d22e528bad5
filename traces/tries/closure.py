"""The monotone closure: which contexts off the trunk a recording holds, grown one token at a time.

Order the members below the target by size. A path off the trunk starts with a run of one member's own next tokens, of
any length up to `reach`; runs of strictly smaller members follow, each at most `run` tokens; all in all a path leaves
the trunk by at most `reach` tokens. A chain of exact verifiers visits no other context.

Letters: S members below the target (smallest first), F contexts of one level (equal number of tokens off the trunk),
C their children.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .trie import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The next level of the closure.

    Attributes:
        parent: `[C]` index among the F contexts, ascending.
        token: `[C]` the token that leads from the parent here, ascending within a parent.
        allowance: `[S, C]` how many more tokens each member may write from here.
    """

    parent: Ints
    token: Ints
    allowance: Ints


def grow(next_token: NDArray[np.integer], allowance: Ints, run: int) -> Branches:
    """Children of one level: each member that may write here does, and equal tokens meet in one child.

    A child written by a member leaves that member one token less; every smaller member may start a run there. Where
    several members write the same token the child keeps the most that any of them allows.

    Args:
        next_token: `[S, F]` what each member writes; set the allowance to 0 where that stays on the trunk.
        allowance: `[S, F]` how many more tokens each member may write.
        run: most tokens of a member after a larger one's.
    """
    member, context = np.nonzero(allowance > 0)
    tokens = next_token[member, context].astype(np.int64)
    keys = (context.astype(np.int64) << 32) | tokens
    children, child = np.unique(keys, return_inverse=True)
    grown = np.zeros((len(next_token), len(children)), dtype=np.int32)
    np.maximum.at(grown, (member, child), allowance[member, context] - 1)
    for larger in range(1, len(next_token)):
        written = child[member == larger]
        grown[:larger, written] = np.maximum(grown[:larger, written], run)
    return Branches(
        parent=(children >> 32).astype(np.int32),
        token=(children & 0xFFFFFFFF).astype(np.int32),
        allowance=grown,
    )
