"""Runs with one request at a time as counts of forwards, so that a run that was played once has seconds at any cost.

Which rounds a fixed chain plays does not depend on seconds: a ladder changes what the forwards of its run cost, and not
which there are. Letters: O operations of a run, K kinds of forwards.
"""

from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....decoding.ledger import DRAFT
from ....decoding.pool import Pool
from ....runs.log import RunLog
from ....sim.cost.base import CostModel, DraftTerms, OperationCost, RoundCost

Counts = NDArray[np.int64]
_BITS = 24  # of a number of tokens: more than a context holds
_MASK = (1 << _BITS) - 1


class UnitCost:
    """Each forward and each lookup takes a second: for runs of which only the forwards are of interest."""

    name = "forwards"
    lookup_s = 1.0

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """One second; see `CostModel`."""
        return 1.0

    def draft_terms(self, model: str) -> DraftTerms | None:
        """None: drafts are forwards."""
        return None

    def notes(self) -> tuple[str, ...]:
        """There is nothing to say."""
        return ()


class _Kind(NamedTuple):
    """A forward of one row."""

    level: int
    drafts: bool
    new_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunForwards:
    """What a run asked of its models.

    Attributes:
        tokens: of output, >= 1.
        kinds: `[K]` by index in the `ForwardKinds` that counted them.
        repeats: `[K]` forwards of the kind, >= 1.
        drafts: `[L]` drafts by each level; those of model-free members are lookups.
        drafted: `[L]` tokens in them.
    """

    tokens: int
    kinds: Counts
    repeats: Counts
    drafts: Counts
    drafted: Counts


class ForwardKinds:
    """Kinds of forwards of runs of one pool, each priced once for all runs that have it.

    Args:
        pool: its members.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._num_free = sum(member.model_free for member in pool.members)
        self._known: dict[int, int] = {}
        self._prices: dict[CostModel, NDArray[np.float64]] = {}

    def count(self, log: RunLog) -> RunForwards:
        """The forwards of a run with one request at a time.

        Raises:
            ValueError: several requests in an operation.
        """
        ops, steps = log.ops, log.steps
        if (ops["num_rows"] != 1).any():
            raise ValueError("a run whose forwards are counted must have one request at a time")
        drafts, level = ops["kind"] == DRAFT, ops["level"].astype(np.int64)
        drafted = np.where(drafts, steps["drafted"], 0)
        # Tokens of the text, pending ones among them, that a forward has been fed once it has run.
        text = _text_before(log)
        forwards = level >= self._num_free
        first = forwards & ~(drafts & (drafted == 0))
        new = ops["new_tokens"] - np.maximum(drafted - 1, 0)
        later = first & (drafted > 1)
        # The middle of the later forwards stands for them (`sim.charges.later_held`).
        middle = text + (drafted - 2) // 2
        packed = np.concatenate(
            [
                _packed(level, drafts, new, text - new)[first],
                _packed(level, drafts, np.ones_like(new), middle)[later],
            ]
        )
        kinds, index = np.unique(packed, return_inverse=True)
        times = np.concatenate([np.ones(int(first.sum()), np.int64), drafted[later] - 1])
        levels = len(self._pool.members)
        return RunForwards(
            tokens=int(log.requests["emitted_tokens"].sum()),
            kinds=self._indices(kinds),
            repeats=np.bincount(index, times, minlength=len(kinds)).astype(np.int64),
            drafts=np.bincount(level[drafts], minlength=levels),
            drafted=np.bincount(level[drafts], drafted[drafts], minlength=levels).astype(np.int64),
        )

    def seconds(self, run: RunForwards, cost: CostModel) -> float:
        """What the run takes at a cost; but for rounding, what `simulate` says.

        Raises:
            ValueError: a cost that knows more of operations than their forwards.
            CostRangeError: a forward that the cost does not know.
        """
        if isinstance(cost, OperationCost | RoundCost):
            raise ValueError(f"cost {cost.name} knows more of operations than their forwards")
        names, free = self._pool.names, self._num_free
        seconds = float(self._priced(cost)[run.kinds] @ run.repeats) + cost.lookup_s * int(run.drafts[:free].sum())
        for level, name in enumerate(names[free:], free):
            terms = cost.draft_terms(name)
            if terms is not None and terms.block is not None:
                raise ValueError(
                    f"cost {cost.name} has {name} draft a block in one forward; drafts are counted by the token here"
                )
            if terms is not None:
                seconds += terms.per_round_s * int(run.drafts[level])
                seconds += (terms.per_token_s or 0.0) * int(run.drafted[level])
        return seconds

    def _indices(self, packed: Counts) -> Counts:
        known = self._known
        return np.array([known.setdefault(kind, len(known)) for kind in packed.tolist()], np.int64)

    def _priced(self, cost: CostModel) -> NDArray[np.float64]:
        prices = self._prices.setdefault(cost, np.zeros(0))
        if len(prices) < len(self._known):
            names, free = self._pool.names, self._num_free
            whole = [level >= free and _whole_drafts(cost.draft_terms(name)) for level, name in enumerate(names)]
            added = [
                0.0 if kind.drafts and whole[kind.level] else self._forward_s(cost, kind)
                for kind in map(_unpacked, islice(self._known, len(prices), None))
            ]
            prices = self._prices[cost] = np.concatenate([prices, added])
        return prices

    def _forward_s(self, cost: CostModel, kind: _Kind) -> float:
        name = self._pool.names[kind.level]
        return cost.forward_s(name, num_rows=1, new_tokens=kind.new_tokens, context_tokens=kind.context_tokens)


def _whole_drafts(terms: DraftTerms | None) -> bool:
    return terms is not None and terms.per_token_s is not None


def _text_before(log: RunLog) -> Counts:
    """`[O]` tokens of the request's text before each operation: its prompt, its answer and what is pending."""
    steps, request = log.steps, log.steps["request"]
    change = steps["drafted"] - (steps["judged"] - steps["accepted"]) + steps["own"]
    after = np.cumsum(change)
    before: Counts = after - change
    starts = np.flatnonzero(np.diff(request, prepend=-1))
    return before - before[starts][request] + log.requests["prompt_tokens"][request]


def _packed(level: Counts, drafts: NDArray[np.bool_], new_tokens: Counts, context_tokens: Counts) -> Counts:
    packed: Counts = (((level * 2 + drafts) << _BITS | new_tokens) << _BITS) | context_tokens
    return packed


def _unpacked(packed: int) -> _Kind:
    which, rest = packed >> (2 * _BITS), packed & ((1 << 2 * _BITS) - 1)
    return _Kind(which >> 1, bool(which & 1), rest >> _BITS, rest & _MASK)
