"""Where the nodes of a tree stand in a cache, and what each looks at: the text, its ancestors, itself.

Slots say nothing of a node's place in its text: nodes lie one after another behind the context, and positions are
explicit. Letters as in `kv.placement`; N new nodes of a request, M nodes of its tree in the cache, the new ones last.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..kv.member_kv import MemberKV
from ..kv.placement import Placement

Flags = NDArray[np.bool_]


class TreeRow(NamedTuple):
    """One request's part in a forward.

    Attributes:
        request_id: of the request.
        positions: of all its new tokens in their texts.
        sees: `[N, M]` which nodes of the tree each of the last N new tokens looks at.
    """

    request_id: str
    positions: Sequence[int]
    sees: Flags


def on_trees(placement: Placement, cache: MemberKV, rows: Sequence[TreeRow]) -> Placement:
    """A placement that was just made for a run of tokens of each request, for trees; rows in the order of its own."""
    device = cache.shape.device
    behind = 0 if placement.prefix is None else placement.prefix.num_slots
    allowed = np.ones((len(rows), placement.longest, placement.num_slots), dtype=np.bool_)
    for number, (row, count) in enumerate(zip(rows, placement.counts, strict=True)):
        num_new, num_nodes = row.sees.shape
        nodes = allowed[number, count - num_new : count]
        nodes[:, [behind + slot for slot in cache.live_slots_of(row.request_id)[-num_nodes:]]] = row.sees
    positions = np.concatenate([np.asarray(row.positions, dtype=np.int64) for row in rows])
    # Parents stand before their children, so what the nodes see is part of what a run of tokens would.
    mask = placement.looks(device) & torch.from_numpy(allowed).to(device)[:, None]
    return placement._replace(positions=torch.from_numpy(positions).to(device), mask=mask, tree=True)


def ancestry(parents: Sequence[int]) -> Flags:
    """`[M, M]` which nodes are each one's ancestors or itself, by the index of its parent (-1 below the root)."""
    sees = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


def depths(parents: Sequence[int]) -> list[int]:
    """`[M]` tokens from the root to each node."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
