"""Published or fitted costs that are linear in new tokens and in tokens held."""

from pydantic import Field, model_validator

from ...traces.meta import LEAST_SECONDS, MOST_SECONDS, Record


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
