"""How far apart whoever endorses a token and its verifier are, worked out when somebody looks.

Few policies do, and on a small model it costs as much as choosing the tokens. Letters: K judged tokens of one request,
M distributions, V vocabulary.
"""

from collections.abc import Sequence
from math import isnan, nan
from typing import NamedTuple, overload

import torch
from torch import Tensor

from ...traces.tries.stored_resolution import UNITS


class Judgement(NamedTuple):
    """One request's tokens under judgement, as they stood before the verdict.

    Attributes:
        start: index of its first context among those of the verifier.
        endorsed: `[K]` logits `[V]` of whoever endorses each token; None without a distribution.
        own: `[K]` whether the verifier wrote the token itself; then the distance is 0.
    """

    start: int
    endorsed: Sequence[Tensor | None]
    own: Sequence[bool]


class OpDistances:
    """Total variation distances of all tokens that one operation judges.

    Args:
        logits: of the verifier, at the contexts of all requests.
        rows: by request.
    """

    __slots__ = ("_found", "_logits", "_rows")

    def __init__(self, logits: Tensor, rows: Sequence[Judgement]) -> None:
        self._logits: Tensor | None = logits
        self._rows = rows
        self._found: list[list[float]] = []

    def of(self, number: int) -> list[float]:
        """`[K]` of one request."""
        if self._logits is not None:
            self._found = self._distances(self._logits)
            self._logits, self._rows = None, ()  # and with them the distributions
        return self._found[number]

    def _distances(self, logits: Tensor) -> list[list[float]]:
        found = [[0.0 if own else nan for own in row.own] for row in self._rows]
        places = [
            (number, index, endorsed)
            for number, row in enumerate(self._rows)
            for index, (endorsed, own) in enumerate(zip(row.endorsed, row.own, strict=True))
            if endorsed is not None and not own
        ]
        if not places:
            return found
        contexts = [self._rows[number].start + index for number, index, _ in places]
        run = contexts[-1] - contexts[0] + 1 == len(contexts)
        verifiers = logits[contexts[0] : contexts[-1] + 1] if run else logits[contexts]
        theirs = stacked_on(logits.device, [endorsed for _, _, endorsed in places])
        # One softmax for both, as on a few rows the calls cost more than the arithmetic.
        drafted, judged = torch.cat([theirs, verifiers]).softmax(dim=-1).chunk(2)
        sums: list[float] = (drafted - judged).abs_().sum(dim=-1).tolist()
        for (number, index, _), value in zip(places, sums, strict=True):
            # As `total_variation`. A context without finite logits fails its request; any distance does.
            found[number][index] = 1.0 if isnan(value) else UNITS.nearest(min(value / 2, 1.0))
        return found


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
