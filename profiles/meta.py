"""What a profile says of itself: whose seconds these are, and what an operation costs beside its forwards."""

from datetime import datetime
from itertools import pairwise
from math import inf
from typing import Literal

from pydantic import Field, model_validator

from ..traces.meta import MOST_SECONDS, Record, Version

Seconds = Field(default=0.0, ge=0, le=MOST_SECONDS)


class BesideForwards(Record):
    """Seconds of one operation that are no forward's: per_op_s + per_row_s x rows + per_token_s x tokens.

    Choosing tokens, placing them in caches, rolling back, bookkeeping, and the loop until the next operation.

    Attributes:
        per_op_s: once, 0 to 1e9.
        per_row_s: for each request of the operation, 0 to 1e9.
        per_token_s: for each token drafted, or judged and written, over all rows, 0 to 1e9.
    """

    per_op_s: float = Seconds
    per_row_s: float = Seconds
    per_token_s: float = Seconds

    def seconds(self, num_rows: int, num_tokens: int) -> float:
        """Of one operation."""
        return self.per_op_s + self.per_row_s * num_rows + self.per_token_s * num_tokens


class SmoothForward(Record):
    """Seconds of one model's forward for shapes that were not measured, shaped as a roofline is.

    intercept_s + per_row_s x rows + per_new_token_s x new tokens + per_context_token_s x tokens held
    + per_pair_s x new tokens x tokens held per row.

    Attributes:
        intercept_s, per_row_s, per_new_token_s, per_context_token_s, per_pair_s: none negative.
        held_out_error: median relative error on measured shapes that the fit did not see.
    """

    intercept_s: float = Seconds
    per_row_s: float = Seconds
    per_new_token_s: float = Seconds
    per_context_token_s: float = Seconds
    per_pair_s: float = Seconds
    held_out_error: float = Field(ge=0)

    def seconds(self, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Of one forward; tokens over all rows."""
        return (
            self.intercept_s
            + self.per_row_s * num_rows
            + self.per_new_token_s * new_tokens
            + self.per_context_token_s * context_tokens
            + self.per_pair_s * new_tokens * context_tokens / num_rows
        )


class InDecoding(Record):
    """How a member's forwards fare among those of others, with rows of unequal length, by rows of the forward.

    Attributes:
        rows: strictly increasing, >= 1.
        again: how many times as long as on their own they take right after another of the same member.
        after_others: the same after forwards of other members, which pushed its weights out of the caches.
    """

    rows: tuple[int, ...] = Field(min_length=1)
    again: tuple[float, ...]
    after_others: tuple[float, ...]

    @model_validator(mode="after")
    def _aligned(self) -> "InDecoding":
        if not len(self.rows) == len(self.again) == len(self.after_others):
            raise ValueError("rows, again and after_others must be of one length")
        if any(a >= b for a, b in pairwise((0, *self.rows))):
            raise ValueError("rows must be strictly increasing from >= 1")
        if not all(0 < ratio < inf for ratio in (*self.again, *self.after_others)):
            raise ValueError("again and after_others must be > 0 and finite")
        return self


class ProfiledMember(Record):
    """One member as it was measured.

    Attributes:
        name: in the pool.
        parameters: of its model.
        dtype: of its weights.
        forward: how it ran, `fused` or `modules`.
        in_decoding: how much longer its forwards take among the other members'.
        smooth: for shapes beyond the grid.
    """

    name: str
    parameters: int = Field(ge=1)
    dtype: str
    forward: str
    in_decoding: InDecoding
    smooth: SmoothForward


class ProfileMeta(Record):
    """What stands in a profile's header.

    Attributes:
        format, version: of the file.
        pool: name of the pool.
        forced: whether its models have random weights, and a recording decided what they accepted.
        members: that have a model, in level order.
        processor: of the machine.
        device: the models ran on: `cpu` or the accelerator's name.
        threads: torch used.
        torch, transformers, paceline: versions.
        cache: kind of cache.
        sampling: mode that the operations were measured with.
        products: which product multiplied which weight with how many tokens, a line for each weight shape.
        measured_at: when it was finished.
        drift: relative change of a shape's seconds from the beginning to the end, median over shapes.
        left_out: shapes that were asked for and not measured, in words.
        draft, verify: what operations cost beside their forwards.
        lookup_s: of one prompt lookup.
        decide_s: seconds that a policy takes for a step, deciding and learning, by the name of its class.
    """

    format: Literal["paceline-profile"] = "paceline-profile"
    version: Version = 1
    pool: str
    forced: bool = False
    members: tuple[ProfiledMember, ...] = Field(min_length=1)
    processor: str
    device: str
    threads: int = Field(ge=1)
    torch: str
    transformers: str
    paceline: str
    cache: str
    sampling: str
    products: tuple[str, ...] = ()
    measured_at: datetime
    drift: float = Field(ge=0)
    left_out: tuple[str, ...] = ()
    draft: BesideForwards
    verify: BesideForwards
    lookup_s: float = Field(gt=0, le=MOST_SECONDS)
    decide_s: dict[str, float]

    @property
    def hardware(self) -> str:
        """The machine in a few words."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        where = self.processor if self.device == "cpu" else f"{self.device} with {self.processor}"
        return f"{where}, {threads}"
