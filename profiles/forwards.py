"""Seconds of a member's forwards between the shapes that were measured."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from .meta import InDecoding, SmoothForward
from .profile import Shape


class ProfiledForwards:
    """Seconds of one member's forwards.

    Between measured shapes they are linear in the new tokens and the tokens held of a row, then linear in rows; rows
    of unequal length count as so many of the mean length. Beyond, the smooth model answers.

    Args:
        shapes: measured, of this member.
        smooth: for all others; None where there is none yet.
        in_decoding: how much longer forwards take in decoding; None for forwards on their own.

    Attributes:
        smooth: as given.
        beyond: whether it has had to ask the smooth model.
    """

    def __init__(
        self, shapes: Sequence[Shape], smooth: SmoothForward | None, in_decoding: InDecoding | None = None
    ) -> None:
        self.smooth = smooth
        self.beyond = False
        self._in_decoding = in_decoding
        self._ratios: dict[int, tuple[float, float]] = {}
        self._by_rows = {
            rows: _Slice([shape for shape in shapes if shape.rows == rows])
            for rows in sorted({shape.rows for shape in shapes})
        }
        self._rows = list(self._by_rows)

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Of one forward; tokens over all rows. Raises ValueError beyond the shapes where nothing is smooth yet."""
        measured = self.measured(num_rows, new_tokens, context_tokens)
        if measured is not None:
            return self._again(num_rows) * measured
        if self.smooth is None:
            raise ValueError(
                f"no shape near {num_rows} rows of {new_tokens} tokens after {context_tokens} was measured"
            )
        self.beyond = True
        return self._again(num_rows) * self.smooth.seconds(num_rows, new_tokens, context_tokens)

    def longer_after_others(self, num_rows: int) -> float:
        """Share by which a forward takes longer than `seconds` if another member's ran before it; may be negative."""
        if self._in_decoding is None:
            return 0.0
        again, after_others = self._ratios_of(num_rows)
        return after_others / again - 1

    def _again(self, num_rows: int) -> float:
        return 1.0 if self._in_decoding is None else self._ratios_of(num_rows)[0]

    def _ratios_of(self, num_rows: int) -> tuple[float, float]:
        """(again, after others), linear between the rows that were watched and constant beyond."""
        if num_rows not in self._ratios:
            known = self._in_decoding
            assert known is not None
            again, after_others = (
                float(np.interp(num_rows, known.rows, values)) for values in (known.again, known.after_others)
            )
            self._ratios[num_rows] = (again, after_others)
        return self._ratios[num_rows]

    def measured(self, num_rows: int, new_tokens: int, context_tokens: int) -> float | None:
        """Seconds of a forward on its own, between measured shapes; None beyond them."""
        rows = self._rows
        each, held = new_tokens / num_rows, context_tokens / num_rows
        right = bisect_left(rows, num_rows)
        if right == len(rows):
            return None
        upper = self._by_rows[rows[right]].seconds(each, held)
        if upper is None or rows[right] == num_rows:
            return upper
        lower = self._by_rows[rows[right - 1]].seconds(each, held)
        if lower is None:
            return None
        share = (num_rows - rows[right - 1]) / (rows[right] - rows[right - 1])
        return lower + share * (upper - lower)


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
