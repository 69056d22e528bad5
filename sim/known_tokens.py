"""What an imported recording says of one drafter's tokens in one request."""

from typing import Protocol

from ..traces.imported.rounds import DrafterInfo, Rounds, RoundsRequest

REFUSED, AGREED, UNKNOWN = range(3)


class Known(Protocol):
    """What the recording says of one drafter's tokens in one request."""

    def agrees(self, start: int, depth: int) -> bool | None:
        """Whether token `depth` of a round started at `start` is the target's, if all before it are; None: unknown."""
        ...

    def num_agreed(self, start: int) -> int:
        """Leading tokens of a round started at `start` that are known to be the target's."""
        ...


class RoundsKnown:
    """Of a drafter whose tokens depend on where the round started: a round answers for its own start only.

    Args:
        rounds: recorded ones.
        window: most tokens the drafter drafts, None if unknown.
        num_tokens: of the text they are rounds of; what a drafter would have written behind it, no round says.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        refused = ~rounds.censored(window) & (rounds.start + rounds.accepted < num_tokens)
        values = zip(rounds.accepted.tolist(), refused.tolist(), strict=True)
        self._rounds: dict[int, tuple[int, bool]] = dict(zip(rounds.start.tolist(), values, strict=True))

    def agrees(self, start: int, depth: int) -> bool | None:
        """See `Known`."""
        accepted, refused = self._rounds.get(start, (0, False))
        if depth < accepted:
            return True
        return False if refused and depth == accepted else None

    def num_agreed(self, start: int) -> int:
        """See `Known`."""
        return self._rounds.get(start, (0, False))[0]


class TokensKnown:
    """Of a drafter that reads tokens only: rounds answer for their positions, whatever round these are drafted in.

    Where two rounds contradict each other (a half-precision tie), the one that started later is believed.

    Args:
        rounds: recorded ones.
        window: most tokens the drafter drafts, None if unknown.
        num_tokens: of the text they are rounds of.
    """

    def __init__(self, rounds: Rounds, window: int | None, num_tokens: int) -> None:
        bits = bytearray([UNKNOWN]) * (num_tokens + 1)
        censored = rounds.censored(window).tolist()
        for start, accepted, whole in zip(rounds.start.tolist(), rounds.accepted.tolist(), censored, strict=True):
            bits[start : start + accepted] = bytes([AGREED]) * accepted
            if not whole:
                bits[start + accepted] = REFUSED
        bits[num_tokens] = UNKNOWN  # nobody knows what comes behind the text
        self._bits = bytes(bits)

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


class NothingKnown:
    """Of a drafter that never ran on the request."""

    def agrees(self, start: int, depth: int) -> bool | None:
        """See `Known`."""
        return None

    def num_agreed(self, start: int) -> int:
        """See `Known`."""
        return 0


def known_tokens(request: RoundsRequest, drafter: DrafterInfo) -> Known:
    """What the recording says of `drafter` in `request`."""
    rounds = request.rounds.get(drafter.name)
    if rounds is None:
        return NothingKnown()
    kind = RoundsKnown if drafter.by_start else TokensKnown
    return kind(rounds, drafter.window, request.length(drafter.name))
