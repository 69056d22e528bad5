"""The interface of every cost model: seconds of forwards, and what only some of them have in addition.

Some have seconds of recorded rounds, some seconds of operations outside forwards, some distinguish tokens read from
tokens attended to. Some have seconds on a line over a range of tokens held, so that all forwards of a batch that only
decodes are one sum.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Literal, NamedTuple

from ...base.errors import ArgumentError
from ...traces.meta import DraftBlock
from ...traces.profile import BatchShape, DecideSeconds

# Kinds of operations by seconds outside forwards: `stop` is a draft in which some row has a stop.
Beside = Literal["draft", "stop", "verify"]

# Seconds of one prompt lookup. Measured with benchmarks/lookup.py on contexts of 100 to 200 tokens.
LOOKUP_S = 1.0e-5
NOTHING_TO_DECIDE = DecideSeconds.of_step(0.0)


class DraftTerms(NamedTuple):
    """Seconds of one batched Draft of a member."""

    per_round_s: float  # once, for any number of tokens and rows
    # for each token of the longest row, in place of all forwards: catch-up is then part of the round. None: the
    # forwards are charged.
    per_token_s: float | None
    block: DraftBlock | None = None  # of a member whose whole draft is one forward; None: one per token
    per_round_row_s: float = 0.0  # for each row of the Draft, added to `per_round_s`
    stop_s: float = 0.0  # per read of just drafted tokens' probabilities by a stop, for all rows at once

    def seconds(self, longest: int, num_rows: int) -> float:
        """Of a Draft whose longest row has `longest` tokens, without forwards that are charged separately."""
        return self.per_round_s + self.per_round_row_s * num_rows + (self.per_token_s or 0.0) * longest

    def scaled(self, factor: float) -> "DraftTerms":
        """The same with all seconds multiplied."""
        each_s = None if self.per_token_s is None else self.per_token_s * factor
        return DraftTerms(
            self.per_round_s * factor, each_s, self.block, self.per_round_row_s * factor, self.stop_s * factor
        )

    def check_fits(self, model: str, longest: int) -> None:
        """Raises CostRangeError for a draft longer than that of one forward."""
        if self.block is not None and longest > self.block.tokens:
            most = self.block.tokens
            raise CostRangeError(
                f"{model} drafts {most} tokens in one forward, asked for {longest}", f"use a window of {most}"
            )


class RoundScale(NamedTuple):
    """How unrecorded rounds of one request differ from the recording's means."""

    drafting: float  # factor on the mean seconds of a drafted token, > 0
    verifying: float  # factor on the mean seconds of the target's forward, > 0
    # most seconds of drafting a round, at any requested length: of a drafter that ends its drafts by itself, at lengths
    # that the log does not have. Infinite for others.
    most_draft_s: float


class ContextLine(NamedTuple):
    """Seconds of a forward by the tokens held: `start_s + slope_s x (held - start)` for `start <= held < end`."""

    start: int  # tokens held, >= 0
    end: float  # above `start`; may be infinite
    start_s: float  # at `start`
    slope_s: float  # for each token more


class CostModel:
    """Seconds of forwards on one device, and defaults for all else."""

    name: str  # shown in tables
    lookup_s: float = LOOKUP_S  # seconds of one prompt lookup
    knows_rounds: bool = False  # whether it has `round_shape` and `round_s`
    # whether it has seconds of operations outside forwards, and `batch_s`
    knows_operations: bool = False
    knows_reads: bool = False  # whether it has `shared_forward_s`
    bound_only: bool = False  # whether it is a lower bound, unfit to choose draft lengths
    # by model, the share of its weights that each other model also reads; of a cost by operations
    shares: Mapping[str, Mapping[str, float]] = {}
    # members whose forwards cost as if each row held as many tokens as the longest: `context_tokens` of a batch is then
    # the longest, times its rows (`held_together`)
    longest: Collection[str] = ()

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward of a member.

        Over all `num_rows` requests, `new_tokens` are fed and `context_tokens` are in the KV cache already. Within one
        run the same arguments give the same seconds.
        """
        raise NotImplementedError

    def draft_terms(self, model: str) -> DraftTerms | None:
        """Seconds of whole Drafts by the member; None where a Draft takes only its forwards."""
        return None

    def notes(self) -> tuple[str, ...]:
        """What readers of the seconds computed so far must know; one line each."""
        return ()

    def ends(self, *, whole: bool = False) -> "tuple[CostModel, ...]":
        """The same cost at both ends of its uncertainty, between which nine in ten measurements lie; () if unknown.

        What is the same for all policies, such as a device that is slower than predicted, changes no speed-up of a
        batch of one size: it is left out, unless `whole`. Then there are four: short and long rounds, each on a fast
        and on a slow device. The first is the fastest, the last the slowest.
        """
        return ()

    # -- lines by the tokens held, and rows that share what is read

    def unlined(self) -> str:
        """Why there is no `context_line`, in words that name the cost; "" if there is."""
        return f"cost {self.name} has no lines by the tokens held"

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """The line that `context_tokens` lies on; arguments and errors as of `forward_s`, which lies on it.

        The same line for all tokens held between its ends. Only to be called where `unlined` is "".
        """
        raise NotImplementedError

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """Seconds of one forward whose rows share a part of their keys and values; arguments as of `forward_s`.

        In `context_tokens`, tokens that rows share count for each row. In `read_tokens`, those read, 0 to
        `context_tokens`, they count once.
        """
        raise NotImplementedError

    # -- recorded rounds

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        """Seconds of the round that was recorded at `start`: (drafting, the target's forward); None if none was.

        `start` is the output position of the round's first token. Drafter "" is a step of the target alone, with
        drafting of 0 seconds.
        """
        return None

    def round_shape(self, request_id: str, start: int, drafter: str) -> tuple[int, int]:
        """(tokens drafted, tokens held before it) of a recorded round, where the log has them."""
        raise NotImplementedError

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """How a drafter's rounds of a request differ from the recording's means."""
        return RoundScale(1.0, 1.0, inf)

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round of an answer by `method` ("" is the target alone); 0 if unknown."""
        return 0.0

    # -- operations

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        """Seconds of a forward of these rows, the first of its operation or a later one, without the reload."""
        raise NotImplementedError

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """Extra seconds of an operation's first forward for weights not read just before (`WeightsRead.away`)."""
        return 0.0

    def lookups_s(self, num_rows: int) -> float:
        """Seconds of a draft by prompt lookup for `num_rows` requests, up to the next operation."""
        return self.lookup_s * num_rows

    def beside_s(self, kind: Beside, model: str, *, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        """Seconds of one operation of this kind outside its forwards, up to the next operation.

        `num_rows` counts its requests, `num_tokens` those drafted, or judged and written, over all rows.
        """
        return 0.0

    def decide_s(self, policy: str) -> DecideSeconds:
        """Seconds that a policy, by the name of its class, takes for a step."""
        return NOTHING_TO_DECIDE


class ShapedCost(CostModel):
    """Seconds from the shapes of models, on lines by the tokens held."""

    _blocks: Mapping[str, DraftBlock]  # of members that write a whole draft in one forward
    _free: Collection[str]  # members that copy text
    _copied: tuple[float, float] = (0.0, 0.0)  # an engine's seconds of a round of theirs: once, and for each row

    def unlined(self) -> str:
        return ""

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`: drafts take their forwards, the one of a block drafter, or a lookup."""
        if model in self._blocks:
            return DraftTerms(0.0, None, self._blocks[model])
        round_s, row_s = self._copied
        return DraftTerms(round_s, 0.0, None, self.lookup_s + row_s) if model in self._free else None

    def lookups_s(self, num_rows: int) -> float:
        round_s, row_s = self._copied
        return round_s + (self.lookup_s + row_s) * num_rows


class WrappedCost(CostModel):
    """Another cost model whose forwards take other seconds."""

    def __init__(self, cost: CostModel, name: str) -> None:
        self.name = name
        self.lookup_s, self.longest, self.bound_only = cost.lookup_s, cost.longest, cost.bound_only
        self._cost = cost

    @property
    def wrapped(self) -> CostModel:
        """The other one."""
        return self._cost

    def draft_terms(self, model: str) -> DraftTerms | None:
        return self._cost.draft_terms(model)

    def lookups_s(self, num_rows: int) -> float:
        return self._cost.lookups_s(num_rows)

    def round_shape(self, request_id: str, start: int, drafter: str) -> tuple[int, int]:
        return self._cost.round_shape(request_id, start, drafter)

    def notes(self) -> tuple[str, ...]:
        return self._cost.notes()


class CostRangeError(ArgumentError):
    """Seconds outside the range of a cost model.

    Args:
        told: its range, and the value outside.
        advice: a remedy where requests run in batches of a given size.
        under_load: a remedy where an engine makes the batches; "" is the same.
    """

    def __init__(self, told: str, advice: str = "", under_load: str = "") -> None:
        super().__init__(told, advice, under_load)  # from which SimPy makes it again
        self._told, self._advice, self._under_load = told, advice, under_load

    def __str__(self) -> str:
        return f"{self._told}; {self._advice}" if self._advice else self._told

    def loaded(self) -> "CostRangeError":
        """The same where an engine makes the batches."""
        return CostRangeError(self._told, self._under_load) if self._under_load else self


# Advice: what bounds a forward of an engine, and how measured costs extrapolate.
LOADED_ADVICE = (
    "lower max_num_seqs or token_budget of the cluster, use a smaller window or another cost, or give `cost` with "
    "`extrapolate`"
)


def held_together(cost: CostModel, model: str, held: Sequence[int]) -> int:
    """Tokens held over all rows of a forward, as the cost counts them; `held` is by row, at least one."""
    return len(held) * max(held) if model in cost.longest else sum(held)


def flat_line(seconds: float) -> ContextLine:
    """A line that does not depend on tokens held."""
    return ContextLine(0, inf, seconds, 0.0)


def upper_line(one: tuple[float, float], other: tuple[float, float], context_tokens: int) -> ContextLine:
    """The larger of two lines (seconds with nothing held, for each token held); they cross once, if at all."""
    (low_s, low_slope_s), (high_s, high_slope_s) = (one, other) if one[1] <= other[1] else (other, one)
    if high_slope_s == low_slope_s:
        return ContextLine(0, inf, max(low_s, high_s), high_slope_s)
    crossing = max(0, ceil((low_s - high_s) / (high_slope_s - low_slope_s)))
    if context_tokens < crossing:
        return ContextLine(0, crossing, low_s, low_slope_s)
    return ContextLine(crossing, inf, high_s + high_slope_s * crossing, high_slope_s)
