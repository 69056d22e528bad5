"""Published or fitted costs that are linear in new tokens and in tokens held."""

from math import isfinite

from pydantic import Field, model_validator

from ...traces.meta import Record


class CostLine(Record):
    """One model's seconds: intercept_s + per_new_token_s x new tokens + per_kv_token_s x tokens held.

    Attributes:
        intercept_s: of a forward, >= 0.
        per_new_token_s: for each token fed, over all rows, >= 0.
        per_kv_token_s: for each token already in the cache, over all rows, >= 0.
    """

    intercept_s: float = Field(ge=0)
    per_new_token_s: float = Field(default=0.0, ge=0)
    per_kv_token_s: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _costs_something(self) -> "CostLine":
        figures = (self.intercept_s, self.per_new_token_s, self.per_kv_token_s)
        if not all(isfinite(figure) for figure in figures):
            raise ValueError("seconds must be finite")
        if not self.intercept_s + self.per_new_token_s:
            raise ValueError("intercept_s or per_new_token_s must be positive")
        return self

    def seconds(self, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward."""
        return self.intercept_s + self.per_new_token_s * new_tokens + self.per_kv_token_s * context_tokens
