"""How far apart whoever endorses a token and its verifier are, worked out when somebody looks.

Few policies do, and on a small model it costs as much as choosing the tokens. Letters: K judged tokens of one request,
M pairs of distributions of all requests, V vocabulary.
"""

from collections.abc import Callable, Sequence
from math import isnan
from typing import overload

import torch
from torch import Tensor

from ...traces.tries.stored_resolution import UNITS


class OpDistances:
    """Total variation distances of all tokens that one operation judges.

    Args:
        known: by request `[K]` what is known without looking: NaN, or 0 for a token the verifier wrote itself.
        at: `[M]` (request, index) of all others.
        pairs: makes `[M, V]` logits of those who endorse them and `[M, V]` of the verifier.
    """

    __slots__ = ("_at", "_known", "_pairs")

    def __init__(
        self, known: list[list[float]], at: Sequence[tuple[int, int]], pairs: Callable[[], tuple[Tensor, Tensor]]
    ) -> None:
        self._known = known
        self._at = at
        self._pairs: Callable[[], tuple[Tensor, Tensor]] | None = pairs if at else None

    def of(self, number: int) -> list[float]:
        """`[K]` of one request."""
        if self._pairs is not None:
            theirs, verifiers = self._pairs()
            self._pairs = None  # and with it the distributions
            # One softmax for both, as on a few rows the calls cost more than the arithmetic.
            drafted, judged = torch.cat([theirs, verifiers]).softmax(dim=-1).chunk(2)
            sums: list[float] = (drafted - judged).abs_().sum(dim=-1).tolist()
            for (request, index), value in zip(self._at, sums, strict=True):
                # As `total_variation`. A context without finite logits fails its request; any distance does.
                self._known[request][index] = 1.0 if isnan(value) else UNITS.nearest(min(value / 2, 1.0))
        return self._known[number]


class Distances(Sequence[float]):
    """The first distances of one request; reads like a tuple of them."""

    __slots__ = ("_count", "_number", "_op")

    def __init__(self, op: OpDistances, number: int, count: int) -> None:
        self._op = op
        self._number = number
        self._count = count

    def first(self, count: int) -> "Distances":
        """The same, but for those from `count` on."""
        return Distances(self._op, self._number, min(count, self._count))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[float, ...]: ...

    def __getitem__(self, index: int | slice) -> float | tuple[float, ...]:
        values = self._op.of(self._number)
        if isinstance(index, slice):
            return tuple(values[: self._count][index])
        return values[range(self._count)[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def stacked_on(device: torch.device, rows: Sequence[Tensor]) -> Tensor:
    """`[M, V]` of M rows `[V]` in their order, moved to a device once from each device that holds some of them."""
    places: dict[torch.device, list[int]] = {}
    for index, row in enumerate(rows):
        places.setdefault(row.device, []).append(index)
    if len(places) == 1:
        return torch.stack(list(rows)).to(device)
    moved = list(rows)
    for here in places.values():
        block = torch.stack([rows[index] for index in here]).to(device)
        for index, row in zip(here, block.unbind(), strict=True):
            moved[index] = row
    return torch.stack(moved)
