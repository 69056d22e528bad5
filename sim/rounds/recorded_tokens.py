"""What an imported recording says of one drafter's tokens in one request."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...traces.meta import MOST
from ...traces.rounds.meta import DrafterInfo
from ...traces.rounds.rounds import Rounds, RoundsRequest
from ..hazard.beside import Beside, Outcome

REFUSED, AGREED, UNKNOWN = range(3)
WHOLE = MOST  # tokens that a drafter drafts if it does not stop by itself: as many as it is asked for


class _Round(NamedTuple):
    """One recorded round.

    Attributes:
        accepted: tokens that stayed.
        refused: whether a refusal was seen after them.
        num_drafted: tokens after which the drafter stopped by itself; `WHOLE` if it did not.
        placed: whether the log does not say where it stood.
    """

    accepted: int
    refused: bool
    num_drafted: int
    placed: bool

    @property
    def num_known(self) -> int:
        return self.accepted + self.refused


_NOTHING = np.zeros(0, np.int32)
_NO_ROUNDS = Rounds(start=_NOTHING, accepted=_NOTHING, drafted=_NOTHING)
_NO_ROUND = _Round(accepted=0, refused=False, num_drafted=WHOLE, placed=False)


class Known(ABC):
    """What the recording says of one drafter's tokens in one request.

    Args:
        rounds: recorded ones.
        refused: of each whether a refusal was seen after what it kept.
        window: most tokens the drafter drafts, None if unknown.
        num_tokens: of the text they are rounds of.
    """

    def __init__(self, rounds: Rounds, refused: list[bool], window: int | None, num_tokens: int) -> None:
        self._rounds = _by_start(rounds, refused, window, num_tokens)

    @abstractmethod
    def agrees(self, start: int, depth: int) -> bool | None:
        """Whether token `depth` of a round started at `start` is the target's, if all before it are; None: unknown."""

    @abstractmethod
    def num_agreed(self, start: int) -> int:
        """Leading tokens of a round started at `start` that are known to be the target's."""

    @abstractmethod
    def num_placed(self, start: int, first: int, last: int) -> int:
        """Of tokens `first` to `last` - 1 of a round started at `start`, how many only placed rounds speak of."""

    @abstractmethod
    def beside(self, start: int, depth: int) -> Beside | None:
        """What rounds that started elsewhere say of token `depth` of a round started at `start`; None: nothing."""

    def num_drafted(self, start: int) -> int | None:
        """Tokens after which the drafter itself stops in a round started at `start`; None where no round started."""
        found = self._rounds.get(start)
        return None if found is None else found.num_drafted

    def was_placed(self, start: int) -> bool:
        """Whether a round stands at `start` because it was placed there."""
        return self._rounds.get(start, _NO_ROUND).placed


class RoundsKnown(Known):
    """Of a drafter whose tokens depend on where the round started: a round answers for its own start only.

    Arguments as of `Known`; what a drafter would have written after the text, no round says.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        refused = ~rounds.censored(window) & (rounds.start + rounds.accepted < num_tokens)
        super().__init__(rounds, refused.tolist(), window, num_tokens)
        self._starts = rounds.start.tolist()

    def agrees(self, start: int, depth: int) -> bool | None:
        """See `Known`."""
        found = self._rounds.get(start, _NO_ROUND)
        if depth < found.accepted:
            return True
        return False if found.refused and depth == found.accepted else None

    def num_agreed(self, start: int) -> int:
        """See `Known`."""
        return self._rounds.get(start, _NO_ROUND).accepted

    def num_placed(self, start: int, first: int, last: int) -> int:
        """See `Known`."""
        found = self._rounds.get(start, _NO_ROUND)
        return max(min(last, found.num_known) - first, 0) if found.placed else 0

    def beside(self, start: int, depth: int) -> Beside | None:
        """See `Known`: the round that started last before the token, or at it, speaks."""
        position = start + depth
        index = bisect_right(self._starts, position) - 1
        if index < 0 or self._starts[index] == start:
            return None
        other = self._starts[index]
        found, there = self._rounds[other], position - other
        if there < found.accepted:
            return Beside(Outcome.agreed, there)
        if there == found.accepted and there + found.refused:
            return Beside(Outcome.refused if found.refused else Outcome.reached, there)
        # Nothing is said of this token. Where something was said of one before it, its round is not a fresh one.
        return Beside(Outcome.reached, depth) if other + found.num_known > start else None


class TokensKnown(Known):
    """Of a drafter that reads tokens only: rounds answer for their positions, whatever round these are drafted in.

    Where a round ends by the drafter's own rule is known of its own start only. Where two rounds contradict each other
    (a half-precision tie), the one that started later is believed. Arguments as of `Known`.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        bits = bytearray([UNKNOWN]) * (num_tokens + 1)
        placed = bytearray(num_tokens + 1)
        refused = (~rounds.censored(window)).tolist()
        super().__init__(rounds, refused, window, num_tokens)
        for start, found in self._rounds.items():
            bits[start : start + found.accepted] = bytes([AGREED]) * found.accepted
            if found.refused:
                bits[start + found.accepted] = REFUSED
            placed[start : start + found.num_known] = bytes([found.placed]) * found.num_known
        bits[num_tokens] = UNKNOWN  # nobody knows what comes after the text
        placed[num_tokens:] = b"\0"
        self._bits = bytes(bits)
        self._placed = bytes(placed) if any(placed) else b""

    def agrees(self, start: int, depth: int) -> bool | None:
        """See `Known`."""
        position = start + depth
        bit = self._bits[position] if position < len(self._bits) else UNKNOWN
        return None if bit == UNKNOWN else bit == AGREED

    def num_agreed(self, start: int) -> int:
        """See `Known`."""
        bits = self._bits
        if start >= len(bits):
            return 0
        unknown, refused = bits.index(UNKNOWN, start), bits.find(REFUSED, start)
        return (unknown if refused < 0 else min(unknown, refused)) - start

    def num_placed(self, start: int, first: int, last: int) -> int:
        """See `Known`."""
        return sum(self._placed[start + first : start + last])

    def beside(self, start: int, depth: int) -> Beside | None:
        """See `Known`: how many tokens before this one are known to be the target's, whatever round they were in."""
        bits, position = self._bits, min(start + depth, len(self._bits))
        run = position - 1 - max(bits.rfind(UNKNOWN, 0, position), bits.rfind(REFUSED, 0, position))
        return Beside(Outcome.reached, run) if run > depth else None


def known_tokens(request: RoundsRequest, drafter: DrafterInfo) -> Known:
    """What the recording says of `drafter` in `request`; nothing if it never ran there."""
    rounds = request.rounds.get(drafter.name)
    if rounds is None:
        return RoundsKnown(_NO_ROUNDS, None, 0)
    kind = RoundsKnown if drafter.by_start else TokensKnown
    return kind(rounds, drafter.window, request.length(drafter.name))


def _by_start(rounds: Rounds, refused: list[bool], window: int | None, num_tokens: int) -> dict[int, _Round]:
    """The rounds by where they started."""
    short = rounds.short(window, num_tokens)
    columns: tuple[Iterable[int], ...] = (
        rounds.accepted.tolist(),
        refused,
        [drafted if stopped else WHOLE for drafted, stopped in zip(rounds.drafted.tolist(), short, strict=True)],
        rounds.where_placed.tolist(),
    )
    return dict(zip(rounds.start.tolist(), map(_Round._make, zip(*columns, strict=True)), strict=True))
