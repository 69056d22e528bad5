"""Where the tokens of one ragged forward go in a member's cache, and which slots each of them may look at.

Indices are worked out by numpy, which takes half as long as torch over so few of them, and moved to the device once.
Letters: B requests, T new tokens of all of them (request after request), Q the most of one request, S slots looked at.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Places = slice | Tensor  # one run, or indices


SharedKind = Literal["auto", "on", "off"]
SHARED_KINDS: tuple[SharedKind, ...] = ("auto", "on", "off")


class Prefix(NamedTuple):
    """What a forward reads out of a prefix cache, in front of the rows' own slots. Letter: P the most of one request.

    Attributes:
        slots: `[B, P]` of the store of blocks; after a request's last one any.
        num_common: of these P the first so many are the same for all requests: held once, they may be read once.
        own: the placement in the rows alone.
        attention: whether attention over what is common is computed once for all rows: always, never, or where that is
            quicker.
    """

    slots: Tensor
    num_common: int
    own: "Placement"
    attention: SharedKind = "auto"

    @property
    def num_slots(self) -> int:
        """P."""
        return self.slots.shape[1]


class Placement(NamedTuple):
    """One forward's place in a cache; made by `MemberKV.place`, the same for both kinds of cache.

    Attributes:
        counts: `[B]` new tokens of each request, >= 1.
        rows: rows of the cache that are read: a slice if they stand side by side, else `[B]` indices.
        positions: of the new tokens in their texts: a slice if it is one run, else `[T]`.
        written: where keys and values are written: (row, slots) if it is one run, else `[T]` indices into all slots of
            all rows.
        num_slots: S; slots 0 to S - 1 of the rows are read, after those of `prefix`, which are among the S.
        mask: `[B, 1, Q, S]` bool, True where a token looks; None if every token may look at all S slots.
        pad: `[B, Q]` index into T of every token, requests padded with their own last token; None if all counts
            are equal.
        unpad: `[T]` index of every token in B x Q; None as `pad`.
        tree: whether slots say nothing of positions and the mask is all there is; such a forward is not captured.
        prefix: what is read out of a prefix cache; None for nothing.
    """

    counts: tuple[int, ...]
    rows: Places
    positions: Places
    written: tuple[int, slice] | Tensor
    num_slots: int
    mask: Tensor | None
    pad: Tensor | None
    unpad: Tensor | None
    tree: bool = False
    prefix: Prefix | None = None

    @property
    def longest(self) -> int:
        """Q."""
        return max(self.counts)

    def looks(self, device: torch.device) -> Tensor:
        """`mask`, all True where there is none."""
        if self.mask is not None:
            return self.mask
        return torch.ones((len(self.counts), 1, self.longest, self.num_slots), dtype=torch.bool, device=device)

    def padded(self, tokens: Tensor) -> Tensor:
        """`[B, Q, ...]` of what is `[T, ...]`."""
        if self.pad is None:
            return tokens.view(len(self.counts), -1, *tokens.shape[1:])
        return tokens[self.pad]

    def unpadded(self, padded: Tensor) -> Tensor:
        """`[T, ...]` of what is `[B, Q, ...]`."""
        flat = padded.reshape(-1, *padded.shape[2:])
        return flat if self.unpad is None else flat.index_select(0, self.unpad)


def runs(firsts: Sequence[int], counts: tuple[int, ...], device: torch.device) -> Tensor:
    """`[T]` whole numbers: of each request so many in a row, from its first on."""
    starts, lengths = np.array(firsts), np.array(counts)
    longest = max(counts)
    grid = starts[:, None] + np.arange(longest)
    flat = grid.ravel() if min(counts) == longest else grid[_holds_token(lengths, longest)]
    return torch.from_numpy(flat).to(device)


def padding(counts: tuple[int, ...], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """`pad` and `unpad` of a placement."""
    longest = max(counts)
    if min(counts) == longest:
        return None, None
    lengths = np.array(counts)
    ends = lengths.cumsum()[:, None]
    pad = np.minimum(ends - lengths[:, None] + np.arange(longest), ends - 1)
    unpad = np.flatnonzero(_holds_token(lengths, longest))
    return torch.from_numpy(pad).to(device), torch.from_numpy(unpad).to(device)


def _holds_token(lengths: NDArray[np.int64], longest: int) -> NDArray[np.bool_]:
    """`[B, Q]` whether a place holds a token, and not padding."""
    return np.arange(longest) < lengths[:, None]


def side_by_side(rows: list[int]) -> slice | None:
    """The slice that rows make up, None if they have gaps or another order (a new request takes the first free row)."""
    first, end = rows[0], rows[0] + len(rows)
    return slice(first, end) if rows == list(range(first, end)) else None
