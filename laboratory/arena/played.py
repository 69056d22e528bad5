"""What a policy did in a cell of the arena, or why it did nothing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from paceline.base.errors import ArgumentError, check_least, check_within

from .cells import ArenaCell

# Output tokens after which seconds are read for learning curves.
MARKS = (100, 1_000, 10_000)
# The policy's name under which the best static chain of a cell in hindsight is kept.
BEST_STATIC = "best-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A finished run of one policy in one cell; raises ArgumentError for a number out of range.

    All but `think_us`, a measurement, is the same whenever and wherever the run is repeated, and counts for equality.
    """

    cell: ArenaCell
    policy: str  # as it was named, options with it; `best-static` is the best static chain in hindsight
    seed: int  # 0 is the recorded order of requests, each other another order; >= 0
    tokens: int  # of output, >= 1
    # simulated, > 0: to the end of the run with a batch; with arrivals those in which the device was busy
    seconds: float
    # of those, until 100, 1,000 and 10,000 tokens were out; None where the run is shorter, and under arrivals, where
    # they say little
    seconds_at: tuple[float | None, ...]
    mean_e2e_s: float  # simulated, from a request's arrival to its last token, in the mean, > 0
    # of the decisions, those that the recording holds and nobody modelled, 0 to 1; None under arrivals
    exact_share: float | None
    # how it was played: `walked` in the tables of the recording, `stepped` by the loop, `served` by the engine
    path: str
    chain: str = ""  # of `best-static`, the chain; "" of others
    # whether the policy may write other text than the target's; one that says nothing of itself may not, as long as no
    # token differs
    lossy: bool = False
    # of a lossy policy, output tokens that equal the target's own text at their place, 0 to 1; None of others, where
    # the recording does not know the text, and under arrivals
    same_share: float | None = None
    # of a lossy policy, output tokens that differ from it, or that one of both texts lacks, >= 0; None of others, and
    # under arrivals
    divergences: int | None = None
    # microseconds of this host that the policy thought for a step, in the median; None where nobody asked it step by
    # step
    think_us: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_least("`seed`", self.seed, 0)
        check_least("`tokens`", self.tokens, 1)
        check_within("`seconds`", self.seconds, "(0, inf)")
        check_within("`mean_e2e_s`", self.mean_e2e_s, "(0, inf)")
        if self.exact_share is not None:
            check_within("`exact_share`", self.exact_share, "[0, 1]")
        if len(self.seconds_at) != len(MARKS):
            raise ArgumentError(f"`seconds_at` must have {len(MARKS)} entries, got {len(self.seconds_at)}")

    @property
    def tokens_per_s(self) -> float:
        """Speed: output tokens over seconds."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A policy that a cell has no run of."""

    # as of `Played`
    cell: ArenaCell
    policy: str
    seed: int
    why: str  # what it lacks, or that it is not applicable and why, in one line


Outcome: TypeAlias = Played | LeftOut


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Plain values for `json.dumps`."""
    return asdict(outcome) | {"cell": str(outcome.cell)}


def outcome_from_json(content: Mapping[str, Any]) -> Outcome:
    """What `outcome_to_json` made values of; raises KeyError, TypeError or ValueError for others."""
    values = dict(content) | {"cell": ArenaCell.parse(content["cell"])}
    if "why" in values:
        return LeftOut(**values)
    return Played(**values | {"seconds_at": tuple(content["seconds_at"])})
