"""Figures of one model in a cost file: a line, or what a drafter costs by the round."""

from dataclasses import dataclass
from math import inf

from pydantic import Field, model_validator

from ...traces.meta import LEAST_SECONDS, MOST_SECONDS, CostTable, Record
from .base import DraftTerms
from .context_line import ContextLine
from .grid import CostGrid


class CostLine(Record):
    """One model's seconds: intercept_s + per_new_token_s x new tokens + per_kv_token_s x tokens held.

    Attributes:
        intercept_s: of a forward, 0 to 1e9.
        per_new_token_s: for each token fed, over all rows, 0 to 1e9; with the intercept at least 1e-12.
        per_kv_token_s: for each token already in the cache, over all rows, 0 to 1e9.
    """

    intercept_s: float = Field(ge=0, le=MOST_SECONDS)
    per_new_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    per_kv_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)

    @model_validator(mode="after")
    def _costs_something(self) -> "CostLine":
        if self.intercept_s + self.per_new_token_s < LEAST_SECONDS:
            raise ValueError(f"intercept_s or per_new_token_s must be at least {LEAST_SECONDS:g}")
        return self

    def seconds(self, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward."""
        return self.intercept_s + self.per_new_token_s * new_tokens + self.per_kv_token_s * context_tokens

    def context_line(self, new_tokens: int, context_tokens: int) -> ContextLine:
        """The line that `context_tokens` lies on."""
        return ContextLine(0, inf, self.seconds(new_tokens, 0), self.per_kv_token_s)


class RoundFigures(Record):
    """The keys of a cost file that are about rounds.

    Attributes:
        per_round_s: of a Draft, 0 to 1e9.
        per_token_s: of a drafted token, 0 to 1e9; together at least 1e-12.
    """

    per_round_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)
    per_token_s: float = Field(default=0.0, ge=0, le=MOST_SECONDS)

    @model_validator(mode="after")
    def _costs_something(self) -> "RoundFigures":
        if self.per_round_s + self.per_token_s < LEAST_SECONDS:
            raise ValueError(f"per_round_s or per_token_s must be at least {LEAST_SECONDS:g}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFigures:
    """Figures of a member that costs something by the round.

    Attributes:
        terms: of its drafts.
        forwards: of each forward besides; None where the terms are all there is, and the member cannot judge.
    """

    terms: DraftTerms
    forwards: CostTable | CostGrid | CostLine | None
