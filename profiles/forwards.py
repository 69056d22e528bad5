"""Seconds of a member's forwards between the shapes that were measured."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from .batch_shape import BatchShape
from .forward_terms import InDecoding, Reload, SmoothForward, UnevenRows
from .meta import ProfiledMember
from .profile import Profile, Shape


class ProfiledForwards:
    """Seconds of one member's forwards.

    Between measured shapes they are linear in the new tokens and the tokens held of a row, then linear in rows. Beyond,
    the smooth model answers.

    Args:
        shapes: measured, of this member.
        smooth: for all others; None where there is none yet.

    Attributes:
        smooth: as given.
        beyond: whether it has had to ask the smooth model.
    """

    def __init__(self, shapes: Sequence[Shape], smooth: SmoothForward | None) -> None:
        self.smooth = smooth
        self.beyond = False
        self._by_rows = {
            rows: _Slice([shape for shape in shapes if shape.rows == rows])
            for rows in sorted({shape.rows for shape in shapes})
        }
        self._rows = list(self._by_rows)

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: float) -> float:
        """Of a forward with rows of equal length, right after another; tokens over all rows.

        Raises:
            ValueError: a shape beyond those measured where nothing is smooth yet.
        """
        measured = self.measured(num_rows, new_tokens, context_tokens)
        if measured is not None:
            return measured
        if self.smooth is None:
            raise ValueError(
                f"no shape near {num_rows} rows of {new_tokens} tokens after {context_tokens} was measured"
            )
        self.beyond = True
        return self.smooth.seconds(num_rows, new_tokens, context_tokens)

    def even_seconds(self, shape: BatchShape) -> float:
        """Of a forward with as many tokens in rows of equal length that look at as many slots, side by side."""
        return self.seconds(shape.num_rows, shape.new_tokens, shape.num_rows * shape.num_slots - shape.new_tokens)

    def measured(self, num_rows: int, new_tokens: int, context_tokens: float) -> float | None:
        """As `seconds`, between measured shapes; None beyond them."""
        rows = self._rows
        each, held = new_tokens / num_rows, context_tokens / num_rows
        right = bisect_left(rows, num_rows)
        if right == len(rows) or num_rows < rows[0]:
            return None
        upper = self._by_rows[rows[right]].seconds(each, held)
        if upper is None or rows[right] == num_rows:
            return upper
        lower = self._by_rows[rows[right - 1]].seconds(each, held)
        if lower is None:
            return None
        share = (num_rows - rows[right - 1]) / (rows[right] - rows[right - 1])
        return lower + share * (upper - lower)


class ForwardsInDecoding:
    """Seconds of one member's forwards among those of others, with rows of unequal length.

    Args:
        forwards: of the member, on their own.
        uneven: what unequal rows cost.
        reload: what it costs that weights were not read just before.
        in_decoding: what was seen beyond that.
    """

    def __init__(self, forwards: ProfiledForwards, uneven: UnevenRows, reload: Reload, in_decoding: InDecoding) -> None:
        self.forwards = forwards
        self._uneven = uneven
        self._in_decoding = in_decoding
        self._tokens = reload.new_tokens
        self._away_s = (0.0, *reload.away_s)
        self._longer_s = tuple((0.0, *line) for line in reload.longer_s)

    def seconds(self, shape: BatchShape, *, first: bool) -> float:
        """Of a forward, the first of its operation or a later one; without the reload."""
        known = self._in_decoding.first if first else self._in_decoding.later
        alone_s = self.forwards.even_seconds(shape) + self._uneven.seconds(shape)
        # What was seen of other shapes must not make of a short forward none at all.
        return max(alone_s + known.seconds(shape), alone_s / 2)

    def reloads_s(self, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """Seconds on top, by shares of the weights and how long ago these were read (`WeightsRead.away`)."""
        return sum(share * self.reload_s(new_tokens, away_s) for share, away_s in away)

    def reload_s(self, new_tokens: int, away_s: float) -> float:
        """Seconds on top if the weights were read so long before; linear between what was measured, else constant."""
        away = self._away_s
        right = min(bisect_left(away, away_s), len(away) - 1)
        left = max(right - 1, 0)
        share = min(1.0, (away_s - away[left]) / (away[right] - away[left])) if right else 0.0
        tokens = self._tokens
        upper = min(bisect_left(tokens, new_tokens), len(tokens) - 1)
        lower = max(upper - 1, 0)
        above, below = ((line[left] + share * (line[right] - line[left])) for line in
                        (self._longer_s[upper], self._longer_s[lower]))  # fmt: skip
        if upper == lower or new_tokens >= tokens[upper]:
            return above
        return below + (new_tokens - tokens[lower]) / (tokens[upper] - tokens[lower]) * (above - below)


def forwards_of(profile: Profile, member: ProfiledMember) -> ForwardsInDecoding:
    """What a profile knows of one of its members."""
    on_its_own = ProfiledForwards(profile.of(member.name), member.smooth)
    return ForwardsInDecoding(on_its_own, member.uneven, member.reload, member.in_decoding)


class _Slice:
    """Seconds of one member's forwards with one number of rows, by new tokens and tokens held of a row."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        self._new_tokens = sorted({shape.new_tokens for shape in shapes})
        self._contexts: list[list[int]] = []
        self._seconds: list[list[float]] = []
        for new_tokens in self._new_tokens:
            line = sorted((shape.context_tokens, shape.seconds) for shape in shapes if shape.new_tokens == new_tokens)
            self._contexts.append([context for context, _ in line])
            self._seconds.append([seconds for _, seconds in line])

    def seconds(self, new_tokens: float, context_tokens: float) -> float | None:
        """Of one forward; None beyond what was measured."""
        counts = self._new_tokens
        right = bisect_left(counts, new_tokens)
        if right == len(counts) or new_tokens < counts[0]:
            return None
        upper = self._at(right, context_tokens)
        if upper is None or counts[right] == new_tokens:
            return upper
        lower = self._at(right - 1, context_tokens)
        if lower is None:
            return None
        share = (new_tokens - counts[right - 1]) / (counts[right] - counts[right - 1])
        return lower + share * (upper - lower)

    def _at(self, place: int, context_tokens: float) -> float | None:
        """With one of the measured numbers of new tokens."""
        contexts, seconds = self._contexts[place], self._seconds[place]
        if not contexts[0] <= context_tokens <= contexts[-1]:
            return None
        right = bisect_left(contexts, context_tokens)
        if contexts[right] == context_tokens:
            return seconds[right]
        share = (context_tokens - contexts[right - 1]) / (contexts[right] - contexts[right - 1])
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])
