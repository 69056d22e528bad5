"""Seconds of forwards and drafts: the interface of every cost model.

Seconds of forwards as lines in the tokens held, so that many forwards can be added up at once.

A batch that only decodes reads a few tokens more in each forward. Where a cost says over which range its seconds lie on
a line, all of those forwards are one sum.
"""

from collections.abc import Iterable, Mapping
from math import ceil, inf
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from ...base.errors import ArgumentError
from ...traces.meta import DraftBlock
from ...traces.profile import BatchShape

Beside = Literal["draft", "verify"]

# Seconds of one prompt lookup. Measured with benchmarks/lookup.py on contexts of 100 to 200 tokens.
LOOKUP_S = 1.0e-5


class DraftTerms(NamedTuple):
    """Seconds of one batched Draft of a member.

    Attributes:
        per_round_s: once, whatever is drafted and for how many rows.
        per_token_s: for each token of the longest row, in place of all forwards: what the cache lacks is then part of
            the round. None: the forwards are charged.
        block: of a member whose whole draft is one forward; None: a forward a token.
    """

    per_round_s: float
    per_token_s: float | None
    block: DraftBlock | None = None

    def seconds(self, longest: int) -> float:
        """Of a Draft whose longest row has so many tokens, forwards that are charged apart left out."""
        return self.per_round_s + (self.per_token_s or 0.0) * longest

    def check_fits(self, model: str, longest: int) -> None:
        """Raises CostRangeError for a draft that is longer than one forward drafts."""
        if self.block is not None and longest > self.block.tokens:
            most = self.block.tokens
            raise CostRangeError(
                f"{model} drafts {most} tokens in one forward, asked for {longest}", f"use a window of {most}"
            )


class RoundScale(NamedTuple):
    """How rounds of one request that nobody recorded differ from the recording's means.

    Attributes:
        drafting: factor on the mean seconds of a drafted token, > 0.
        verifying: factor on the mean seconds of the target's forward, > 0.
        most_draft_s: seconds that drafting a round takes at most, however much is asked for: of a drafter that ends
            its drafts by itself, after numbers of tokens that the log does not say. Infinite for others.
    """

    drafting: float
    verifying: float
    most_draft_s: float


class CostModel(Protocol):
    """What a forward costs on one device.

    Attributes:
        name: shown in tables.
        lookup_s: seconds of one prompt lookup.
    """

    name: str
    lookup_s: float

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward.

        Args:
            model: pool member.
            num_rows: requests in the batch.
            new_tokens: tokens fed, over all rows.
            context_tokens: tokens already in the KV cache, over all rows.
        """
        ...

    def draft_terms(self, model: str) -> DraftTerms | None:
        """What a Draft by the member costs as a whole; None where it costs its forwards and nothing else."""
        ...

    def notes(self) -> tuple[str, ...]:
        """What a reader of the seconds asked for so far must know; one line each."""
        ...


@runtime_checkable
class RoundCost(CostModel, Protocol):
    """A cost model that also knows what recorded rounds took."""

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        """Seconds of the round that was recorded at `start`: (drafting, the target's forward); None if none was.

        Args:
            request_id: of the recording.
            start: output position of the round's first token.
            drafter: by name; "" is a step of the target alone, whose drafting takes 0 seconds.
        """
        ...

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """How a drafter's rounds of a request differ from the recording's means."""
        ...

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round of an answer by `method` ("" is the target alone); 0 if unknown."""
        ...


@runtime_checkable
class SharingCost(CostModel, Protocol):
    """A cost model that tells what a forward reads from what it attends to, so that rows may share what is read."""

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """Seconds of one forward whose rows share a part of their keys and values.

        Args:
            model: pool member.
            num_rows: requests in the batch.
            new_tokens: tokens fed, over all rows.
            context_tokens: tokens already in the KV cache, over all rows; those that rows share count for each.
            read_tokens: of these, how many are read, 0 to `context_tokens`; those that rows share count once.
        """
        ...


@runtime_checkable
class OperationCost(CostModel, Protocol):
    """A cost model that also knows what operations take besides their forwards."""

    @property
    def shares(self) -> Mapping[str, Mapping[str, float]]:
        """By model, the share of its weights that each other model reads as well."""
        ...

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        """Seconds of a forward of just these rows, the first of its operation or a later one, without the reload."""
        ...

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """Seconds on top of an operation's first forward, as its weights were read a while ago (`WeightsRead.away`)."""
        ...

    def lookups_s(self, num_rows: int) -> float:
        """Seconds of a draft by prompt lookup for so many requests, up to the next operation."""
        ...

    def beside_s(self, kind: Beside, model: str, *, num_forwards: int, num_rows: int, num_tokens: int) -> float:
        """Seconds of one operation that are no forward's, up to the next operation.

        Args:
            kind: of operation.
            model: that runs.
            num_forwards: of the operation.
            num_rows: requests in it.
            num_tokens: drafted, or judged and written, over all rows.
        """
        ...

    def decide_s(self, policy: str) -> float:
        """Seconds that a policy, by the name of its class, takes for a step."""
        ...


class CostRangeError(ArgumentError):
    """A cost model was asked outside what it knows.

    Args:
        told: what it knows, and what it was asked for.
        advice: what can be done where requests run in batches of a given size.
        under_load: what can be done where an engine makes the batches; "" is the same.
    """

    def __init__(self, told: str, advice: str = "", under_load: str = "") -> None:
        super().__init__(told, advice, under_load)  # of which SimPy makes it anew
        self._told, self._advice, self._under_load = told, advice, under_load

    def __str__(self) -> str:
        return f"{self._told}; {self._advice}" if self._advice else self._told

    def loaded(self) -> "CostRangeError":
        """The same where an engine makes the batches."""
        return CostRangeError(self._told, self._under_load) if self._under_load else self


# What bounds a forward of an engine, and how measured costs go beyond what was measured there.
LOADED_ADVICE = (
    "lower max_num_seqs or token_budget of the cluster, use a smaller window or another cost, or give `cost` with "
    "`extrapolate`"
)


class ContextLine(NamedTuple):
    """Seconds of a forward by the tokens held: `start_s + slope_s x (held - start)` for `start <= held < end`.

    Attributes:
        start: tokens held, >= 0.
        end: above `start`; infinite where the line has none.
        start_s: at `start`.
        slope_s: for each token more.
    """

    start: int
    end: float
    start_s: float
    slope_s: float


@runtime_checkable
class LinedCost(CostModel, Protocol):
    """A cost model that says its lines, or why it has none: one that wraps another has what that one has."""

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """The line that `context_tokens` lies on; arguments and errors as of `forward_s`, which lies on it.

        The same line for all tokens held between its ends.
        """
        ...

    def unlined(self) -> str:
        """Why it has no lines, in words; "" if it has."""
        ...


def why_unlined(cost: CostModel) -> str:
    """Why a cost has no lines, in words that name it; "" if it has."""
    if isinstance(cost, LinedCost):
        return cost.unlined()
    return f"cost {cost.name} has no lines by the tokens held"


def flat_line(seconds: float) -> ContextLine:
    """What is held makes no difference."""
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
