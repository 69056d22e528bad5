"""Mixtures of experts: what a recorded model says of its experts, and how many of them a forward touches."""

from math import expm1, log1p

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Experts(BaseModel):
    """Feed-forward parts of a model of which each token goes through a few: a mixture of experts.

    Letters: E experts of a layer, k of them for each token. Experts that every token goes through are not counted here.

    Attributes:
        number: E, >= 2.
        per_token: k, 1 to E.
        layers: that have experts, >= 1.
        parameters: of one expert in one layer, >= 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=2, le=2**31 - 1)
    per_token: int = Field(ge=1, le=2**31 - 1)
    layers: int = Field(ge=1, le=2**31 - 1)
    parameters: int = Field(ge=1, le=2**63 - 1)

    @model_validator(mode="after")
    def _some_of_all(self) -> "Experts":
        if self.per_token > self.number:
            raise ValueError(f"per_token must be at most number, {self.number}, got {self.per_token}")
        return self

    @property
    def all_parameters(self) -> int:
        """Of all experts in all layers."""
        return self.layers * self.number * self.parameters

    @property
    def active_parameters(self) -> int:
        """Of the experts that one token goes through."""
        return self.layers * self.per_token * self.parameters

    def touched(self, num_tokens: int) -> float:
        """Distinct experts of a layer that `num_tokens` tokens go through, k to E in the mean: E (1 - (1 - k/E)^n).

        Every token draws k distinct experts, all of them equally likely, and independently of the others (Huang et al.
        2025, MoESD, arXiv:2505.19645). Neighbouring tokens of one text share experts, so theirs are fewer.
        """
        if self.per_token == self.number:
            return float(self.number)
        return -self.number * expm1(num_tokens * log1p(-self.per_token / self.number))
