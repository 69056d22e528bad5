"""What is known of the seconds of one member's forwards, beside the shapes that were measured."""

from bisect import bisect_left
from itertools import pairwise
from math import inf, isfinite

from pydantic import Field, model_validator

from ..traces.meta import MOST_SECONDS, Record
from .batch_shape import BatchShape

Seconds = Field(default=0.0, ge=0, le=MOST_SECONDS)


class SmoothForward(Record):
    """Seconds of one model's forward for shapes that were not measured, shaped as a roofline is.

    intercept_s + per_row_s x rows + per_new_token_s x new tokens + per_context_token_s x tokens held
    + per_pair_s x new tokens x tokens held per row.

    Attributes:
        intercept_s, per_row_s, per_new_token_s, per_context_token_s, per_pair_s: none negative.
        held_out_error: median relative error on measured shapes that a fit did not see; None if there were too few of
            them to leave any out, so that nobody knows.
    """

    intercept_s: float = Seconds
    per_row_s: float = Seconds
    per_new_token_s: float = Seconds
    per_context_token_s: float = Seconds
    per_pair_s: float = Seconds
    held_out_error: float | None = Field(ge=0)

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: float) -> float:
        """Of one forward; tokens over all rows."""
        return (
            self.intercept_s
            + self.per_row_s * num_rows
            + self.per_new_token_s * new_tokens
            + self.per_context_token_s * context_tokens
            + self.per_pair_s * new_tokens * context_tokens / num_rows
        )


class UnevenRows(Record):
    """Seconds of a forward beyond those of one with as many tokens in rows of equal length, side by side.

    per_padding_s x padding + per_padding_pair_s x padding x slots, and, if the rows are apart,
    apart_s + per_gathered_slot_s x rows x slots.

    Attributes:
        per_padding_s, per_padding_pair_s, apart_s, per_gathered_slot_s: none negative.
    """

    per_padding_s: float = Seconds
    per_padding_pair_s: float = Seconds
    apart_s: float = Seconds
    per_gathered_slot_s: float = Seconds

    def seconds(self, shape: BatchShape) -> float:
        """Of one forward."""
        num_slots = shape.num_slots
        seconds = shape.padding * (self.per_padding_s + self.per_padding_pair_s * num_slots)
        if shape.apart:
            seconds += self.apart_s + self.per_gathered_slot_s * shape.num_rows * num_slots
        return seconds


class AfterAway(Record):
    """A forward of one row that was run again and again, each time so long after the one before.

    Attributes:
        new_tokens: >= 1.
        away_s: seconds since its weights were read, >= 0; 0 for a forward right after another.
        seconds: median of its repeats, > 0.
        spread: half of the range between the quartiles, as a share of the median, >= 0.
    """

    new_tokens: int = Field(ge=1)
    away_s: float = Field(ge=0, le=MOST_SECONDS)
    seconds: float = Field(gt=0, le=MOST_SECONDS)
    spread: float = Field(ge=0, le=MOST_SECONDS)


class Reload(Record):
    """How much longer a forward takes when the same weights were read a while before, not just before.

    What runs meanwhile, on this machine's other processors too, pushes weights out of the caches.
    Letters: T numbers of new tokens, A times away.

    Attributes:
        new_tokens: `[T]` over all rows, strictly increasing, >= 1.
        away_s: `[A]` seconds since the weights were read, strictly increasing, > 0.
        longer_s: `[T, A]` seconds on top of those of a forward right after another, >= 0.
    """

    new_tokens: tuple[int, ...] = Field(min_length=1)
    away_s: tuple[float, ...] = Field(min_length=1)
    longer_s: tuple[tuple[float, ...], ...]

    @model_validator(mode="after")
    def _aligned(self) -> "Reload":
        shape = {len(line) for line in self.longer_s}
        if len(self.longer_s) != len(self.new_tokens) or shape != {len(self.away_s)}:
            raise ValueError("longer_s must have a line for each of new_tokens, each as long as away_s")
        for name, axis in (("new_tokens", self.new_tokens), ("away_s", self.away_s)):
            if any(a >= b for a, b in pairwise((0, *axis))):
                raise ValueError(f"{name} must be strictly increasing from above 0")
        if not all(0 <= seconds < inf for line in self.longer_s for seconds in line):
            raise ValueError("longer_s must be >= 0 and finite")
        return self


# New tokens of a row up to which a forward is taken for a verification; a longer one reads a prompt.
MOST_JUDGED = 20


class Longer(Record):
    """Seconds by which forwards take longer than was foreseen, by their new tokens; may be negative.

    Linear between the numbers that were seen and constant beyond. Nothing is known of forwards that read a prompt.

    Attributes:
        new_tokens: over all rows, strictly increasing, >= 1; none if nothing was seen.
        longer_s: for each.
    """

    new_tokens: tuple[int, ...] = ()
    longer_s: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _aligned(self) -> "Longer":
        if len(self.new_tokens) != len(self.longer_s) or any(a >= b for a, b in pairwise((0, *self.new_tokens))):
            raise ValueError("new_tokens must be strictly increasing from >= 1, with longer_s for each")
        if not all(isfinite(seconds) for seconds in self.longer_s):
            raise ValueError("longer_s must be finite")
        return self

    def seconds(self, shape: BatchShape) -> float:
        """Of one forward."""
        if not self.new_tokens or shape.longest > MOST_JUDGED:
            return 0.0
        right = min(bisect_left(self.new_tokens, shape.new_tokens), len(self.new_tokens) - 1)
        left = max(right - 1, 0)
        low, high = self.new_tokens[left], self.new_tokens[right]
        share = 1.0 if left == right else min(1.0, (shape.new_tokens - low) / (high - low))
        return self.longer_s[left] + share * (self.longer_s[right] - self.longer_s[left])


class InDecoding(Record):
    """What was seen of forwards in decoding beyond all that was measured of them on their own.

    Code that runs in between pushes that of the forward out of the nearest caches, for one.

    Attributes:
        first: of an operation.
        later: of a draft, right after another.
    """

    first: Longer = Longer()
    later: Longer = Longer()
