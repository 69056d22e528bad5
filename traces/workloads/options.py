"""What may be done to a workload, by explicit options only."""

from dataclasses import dataclass, fields
from typing import Any

from ...arguments import ArgumentError, check_least, check_within

ZERO_TOKENS = ("refuse", "drop", "one")
MOST_COUNT = 2**31 - 1
# Of what a text draws. Of a workload, all in memory while it is served:
MOST_REQUESTS = 10_000_000
# Of a session:
MOST_TURNS = 10_000  # requests
MOST_UNITS = 4_000_000  # of text, each of which has an id
# Of one prompt, answer or observation:
MOST_TOKENS = 10_000_000
_MOST_TAG = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Scaling and truncation; in this order: zero tokens, limit, rate or time scale, horizon, most tokens.

    Attributes:
        rate: mean arrivals per second that all times of arrival are scaled to, > 0; of a generator its own rate; of
            sessions without times, that of the Poisson process that starts them. None: as they are.
        time_scale: factor of all times, waits within sessions too, > 0; not beside `rate`. None: 1.
        limit: most arrivals, >= 1; a session with all its turns is one. None: all.
        horizon_s: requests that would arrive at this time or later are left out, > 0. None: none is.
        max_prompt_tokens: longer prompts are cut to this, >= 1. None: none is.
        max_output_tokens: longer outputs are cut to this, >= 1. None: none is.
        zero_tokens: what becomes of a request of a file whose prompt or output has no token: "refuse" it, "drop" it, or
            serve it with "one" token.
        tag: of all requests, in place of theirs; None: theirs.
        seed: of what is drawn.
    """

    rate: float | None = None
    time_scale: float | None = None
    limit: int | None = None
    horizon_s: float | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    zero_tokens: str = "refuse"
    tag: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "time_scale", "horizon_s"):
            if (number := getattr(self, name)) is not None:
                check_within(f"`{name}`", number, "[1e-9, 1e9]")
        for name in ("limit", "max_prompt_tokens", "max_output_tokens"):
            if (count := getattr(self, name)) is not None:
                check_within(f"`{name}`", count, f"[1, {MOST_COUNT}]")
        if self.rate is not None and self.time_scale is not None:
            raise ArgumentError(f"`time_scale` must be left out beside `rate`, got {self.time_scale}")
        if self.zero_tokens not in ZERO_TOKENS:
            raise ArgumentError(f"`zero_tokens` must be one of {', '.join(ZERO_TOKENS)}, got {self.zero_tokens!r}")
        if self.tag is not None and (len(self.tag) > _MOST_TAG or not self.tag.isprintable()):
            raise ArgumentError(f"`tag` must be printable, at most {_MOST_TAG} characters, got {self.tag!r}")
        check_least("`seed`", self.seed, 0)

    def given(self) -> dict[str, Any]:
        """The options that are not as by default, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
