"""What a pool file says of prompt lookup."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...decoding.prompt_lookup import LookupRule, Occurrence


class NgramEntry(BaseModel):
    """Model-free lookup of the latest tokens in the context itself.

    Attributes:
        max_match: longest run of newest tokens that is looked up.
        min_match: shortest one, 1 to `max_match`.
        occurrence: which earlier occurrence is copied from (see `decoding.prompt_lookup`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_match: Annotated[int, Field(ge=1, strict=True)]
    min_match: Annotated[int, Field(ge=1, strict=True)] = 1
    occurrence: Occurrence = "last"

    @model_validator(mode="after")
    def _check_matches(self) -> Self:
        if self.min_match > self.max_match:
            raise ValueError(f"must have a min_match of at most max_match, {self.max_match}, not {self.min_match}")
        return self

    @property
    def rule(self) -> LookupRule:
        """How the lookup finds what to copy."""
        return LookupRule(max_match=self.max_match, min_match=self.min_match, occurrence=self.occurrence)
