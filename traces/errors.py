"""The one error of files that hold recordings; and experts, how many of which a forward touches."""

from math import expm1, log1p
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

_LONGEST_VALUE = 120


class TraceFormatError(ValueError):
    """A file of a recording breaks its format; the message names file, field, rule and value in one line."""

    def __init__(self, path: Path | str, field: str, rule: str, value: object) -> None:
        # All four are args, so that the error survives the trip from a worker process.
        super().__init__(path, field, rule, value)
        self.path = path
        self.field = field
        self.rule = rule
        self.value = value

    def __str__(self) -> str:
        value = repr(self.value)
        if len(value) > _LONGEST_VALUE:
            value = f"{value[: _LONGEST_VALUE - 3]}..."
        return " ".join(f"{self.path}: {self.field}: {self.rule}, got {value}".split())


class Experts(BaseModel):
    """Feed-forward parts of a model of which each token goes through a few: a mixture of experts.

    Letters: E experts of a layer, k of them for each token. Experts that every token goes through are not counted here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(ge=2, le=2**31 - 1)  # E, >= 2
    per_token: int = Field(ge=1, le=2**31 - 1)  # k, 1 to E
    layers: int = Field(ge=1, le=2**31 - 1)  # that have experts, >= 1
    parameters: int = Field(ge=1, le=2**63 - 1)  # of one expert in one layer, >= 1

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
