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


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """Who may write off the trunk. A drafter from the target's states is a writer for each depth, of one level.

    Letter: W writers.

    Attributes:
        level: `[W]` ascending; a larger one's run may be followed by runs of those of lower levels.
        next: `[W]` the writer whose run goes on after a token: itself, of a drafter that one depth further, -1 none.
        depth: `[W]` of a drafter from the target's states, >= 1; 0 of others.
    """

    level: Ints
    next: Ints
    depth: Ints

    @classmethod
    def of(cls, num_models: int, *, reader: int | None = None, depths: int = 1) -> "Writers":
        """One for each model, but for `depths` of them for the model at the index `reader`."""
        rows = [depths if model == reader else 1 for model in range(num_models)]
        level = np.repeat(np.arange(num_models, dtype=np.int32), rows)
        following, depth = np.arange(len(level), dtype=np.int32), np.zeros(len(level), dtype=np.int32)
        if reader is not None:
            at = np.flatnonzero(level == reader)
            depth[at] = np.arange(1, depths + 1)
            following[at] = [*at[1:], -1]
        return cls(level=level, next=following, depth=depth)

    def __len__(self) -> int:
        return len(self.level)


def grow(next_token: NDArray[np.integer], allowance: Ints, run: int, writers: Writers | None = None) -> Branches:
    """Children of one level: each member that may write here does, and equal tokens meet in one child.

    A child written by a member leaves that member one token less; every smaller member may start a run there. Where
    several members write the same token the child keeps the most that any of them allows.

    Args:
        next_token: `[S, F]` what each member writes; set the allowance to 0 where that stays on the trunk.
        allowance: `[S, F]` how many more tokens each member may write.
        run: most tokens of a member after a larger one's.
        writers: what the S rows are; None: a member each, by size.
    """
    known = writers or Writers.of(len(next_token))
    member, context = np.nonzero(allowance > 0)
    tokens = next_token[member, context].astype(np.int64)
    keys = (context.astype(np.int64) << 32) | tokens
    children, child = np.unique(keys, return_inverse=True)
    grown = np.zeros((len(next_token), len(children)), dtype=np.int32)
    going = known.next[member] >= 0
    np.maximum.at(grown, (known.next[member[going]], child[going]), allowance[member, context][going] - 1)
    for larger in range(1, len(next_token)):
        written = child[member == larger]
        smaller = int(np.searchsorted(known.level, known.level[larger]))
        grown[:smaller, written] = np.maximum(grown[:smaller, written], run)
    return Branches(
        parent=(children >> 32).astype(np.int32),
        token=(children & 0xFFFFFFFF).astype(np.int32),
        allowance=grown,
    )
