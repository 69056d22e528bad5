"""What a search for slim verifiers found: distance against seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .masks import Mask

How = Literal["exhaustive", "random", "bayesian", "pool"]

# Tokens of the verification that is timed: four drafted ones and the one before them.
VERIFIED_TOKENS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimFound:
    """A slim verifier; distances are means over the target's own text after the prompts of the search.

    Attributes:
        name: of the member.
        share: of the target's layers that it leaves out, 0 to 1.
        skip_layers: those layers.
        num_parameters: of what is left.
        tvd: mean total variation distance to the target, 0 to 1.
        disagreement: share of tokens with another argmax than the target's, 0 to 1.
        seconds: of a forward of `VERIFIED_TOKENS` tokens.
        seconds_share: of the target's seconds for the same, > 0.
        how: what proposed it; `pool` for a submodel that was there before.
        dominated: another one is as fast and as close or better, and better in seconds, `tvd` or `disagreement`.
    """

    name: str
    share: float
    skip_layers: Mask
    num_parameters: int
    tvd: float
    disagreement: float
    seconds: float
    seconds_share: float
    how: How
    dominated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """All of a search.

    Attributes:
        found: one per share, in the order asked.
        baselines: submodels that the pool had.
        target_s: seconds of the target's forward of `VERIFIED_TOKENS` tokens.
        num_layers: of the target.
        num_tokens: of the target's text that distances were measured on.
        num_trials: masks tried.
    """

    found: tuple[SlimFound, ...]
    baselines: tuple[SlimFound, ...]
    target_s: float
    num_layers: int
    num_tokens: int
    num_trials: int


def mark_dominated(rows: Sequence[SlimFound]) -> tuple[SlimFound, ...]:
    """The rows, each compared with all others."""
    return tuple(replace(row, dominated=any(_dominates(other, row) for other in rows)) for row in rows)


def _dominates(one: SlimFound, other: SlimFound) -> bool:
    pairs = (
        (one.seconds, other.seconds),
        (one.tvd, other.tvd),
        (one.disagreement, other.disagreement),
    )
    return all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs)
