"""What if a model were faster: seconds of another cost model, scaled by member.

Measured seconds on another device: the parts that a roofline explains change with the device, the host's do not.

Of the seconds S of a measured forward, the device it was measured on cannot have taken less than its roofline: the
larger of arithmetic and memory time. What is left is the host's (launches, Python, sampling) and whatever the device
falls short of its peaks; a measurement does not tell them apart. So three readings:

- `device`: what the roofline explains takes what it takes on the other device, term by term; the rest stays.
- `all`: everything scales as the rooflines do, S x roofline there / roofline here: no host time, only lost peaks.
- `memory`: only the memory term changes; arithmetic is slow for reasons that another device shares.

What if the members of a recording were other models: each one's forwards at the price of another model's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isinf
from typing import Protocol, runtime_checkable

from ...base.errors import check_within
from ...traces.profile import BatchShape
from .base import (
    LOOKUP_S,
    ContextLine,
    CostModel,
    DraftTerms,
    LinedCost,
    OperationCost,
    RoundCost,
    RoundScale,
    SharingCost,
    why_unlined,
)
from .measured import TimedCost
from .roofline import RooflineCost

LEAST_PROMPT = 1  # tokens of a prompt whose length no log says: its weights are read at least once


class Reading(StrEnum):
    """How measured seconds are taken to another device; see the module."""

    device = "device"
    all = "all"
    memory = "memory"


class MappedCost:
    """Measured seconds of forwards, on another device.

    Args:
        cost: what was measured.
        here: rooflines of the device it was measured on.
        there: of the other device.
        reading: of the measurement.
    """

    def __init__(self, cost: CostModel, here: RooflineCost, there: RooflineCost, reading: Reading) -> None:
        self.name = f"{cost.name}, {here.name} to {there.name}"
        self.lookup_s = cost.lookup_s
        self._cost = cost
        self._here = here
        self._there = there
        self._reading = reading
        self._faster: dict[str, None] = {}

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        seconds = self._cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        return self.moved_s(model, seconds, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)

    def moved_s(
        self, model: str, seconds: float, *, num_rows: int, new_tokens: int, context_tokens: int, times: int = 1
    ) -> float:
        """What `times` equal forwards that took `seconds` together take on the other device."""
        terms = self._here.draft_terms(model)
        if terms is not None and terms.block is None:
            return seconds  # it copies text: the host's seconds
        one = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        here, there = self._here.busy_s(model, **one), self._there.busy_s(model, **one)
        if seconds < times * max(here):
            self._faster[model] = None
        if self._reading is Reading.all:
            return seconds * max(there) / max(here)
        term_here, term_there = (here[1], there[1]) if self._reading is Reading.memory else (max(here), max(there))
        explained_s = min(seconds, times * term_here)
        return seconds - explained_s + explained_s * term_there / term_here

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`: measured drafts cost their forwards."""
        return self._cost.draft_terms(model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        notes = (*self._cost.notes(), *self._here.notes())
        if self._faster:
            faster = ", ".join(self._faster)
            notes += (f"measured faster than the roofline of {self._here.name} allows, in parts: {faster}",)
        return notes


class MappedRoundCost(MappedCost):
    """As `MappedCost`, of the seconds of recorded rounds that `target` verifies."""

    def __init__(
        self, cost: TimedCost, here: RooflineCost, there: RooflineCost, reading: Reading, *, target: str
    ) -> None:
        super().__init__(cost, here, there, reading)
        self._timed = cost
        self._target = target
        self._short = False

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. A drafter's mean is that of a forward of one token."""
        fed = new_tokens if model == self._target else num_rows
        return super().forward_s(model, num_rows=num_rows, new_tokens=fed, context_tokens=context_tokens)

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        """Seconds of a recorded round; see `RoundCost`."""
        seconds = self._timed.round_s(request_id, start, drafter)
        if seconds is None:
            return None
        drafted, held = self._timed.round_shape(request_id, start, drafter)
        draft_s, verify_s = seconds
        if drafted:
            terms = self._here.draft_terms(drafter)
            block = None if terms is None else terms.block
            new, before = (1, held) if block is None else block.forward(1, held, drafted)
            one = {"num_rows": 1, "new_tokens": new, "context_tokens": before}
            draft_s = self.moved_s(drafter, draft_s, **one, times=drafted if block is None else 1)
        return draft_s, self.moved_s(self._target, verify_s, num_rows=1, new_tokens=drafted + 1, context_tokens=held)

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """See `RoundCost`. The most that drafting takes changes as the mean of a drafted token does."""
        scale = self._timed.round_scale(request_id, drafter)
        if isinf(scale.most_draft_s):
            return scale
        one = {"num_rows": 1, "new_tokens": 1, "context_tokens": 0}
        ratio = self.forward_s(drafter, **one) / self._timed.forward_s(drafter, **one)
        return scale._replace(most_draft_s=scale.most_draft_s * ratio)

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round; see `RoundCost`. All of it counts as the target's reading of the prompt."""
        seconds = self._timed.prefill_s(request_id, method)
        if not seconds:
            return 0.0
        prompt = self._timed.prompt_tokens(request_id)
        self._short = self._short or not prompt
        return self.moved_s(self._target, seconds, num_rows=1, new_tokens=max(prompt, LEAST_PROMPT), context_tokens=0)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        short = ("prompts of unknown length: of their prefill, one reading of the weights is mapped",)
        return super().notes() + (short if self._short else ())


def mapped(cost: CostModel, here: RooflineCost, there: RooflineCost, reading: Reading, *, target: str) -> CostModel:
    """`cost`, measured with the recording, on another device; `target` is the pool's last member, see `MappedCost`."""
    if isinstance(cost, TimedCost):
        found: RoundCost = MappedRoundCost(cost, here, there, reading, target=target)
        return found
    return MappedCost(cost, here, there, reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Where the seconds of one member come from.

    Attributes:
        cost: that knows the other model.
        model: its name there.
    """

    cost: CostModel
    model: str


class PricedAsCost:
    """Seconds of other models' forwards, member by member: drafters may lie on fewer devices than the target.

    What is drafted and accepted stays that of the recording; only the seconds are another model's.

    Args:
        name: shown in tables.
        prices: by member of the recording.

    Raises:
        ValueError: no member has a price; by `forward_s`, this one has none.
    """

    def __init__(self, name: str, prices: Mapping[str, Price]) -> None:
        if not prices:
            raise ValueError(f"cost {name}: prices must hold at least one member, got {dict(prices)}")
        self.name = name
        self.lookup_s = LOOKUP_S
        self._prices = dict(prices)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Raises ValueError for a member without a price."""
        price = self._price(model)
        return price.cost.forward_s(
            price.model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens
        )

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `LinedCost`; to be asked for only where `unlined` says nothing."""
        price = self._price(model)
        assert isinstance(price.cost, LinedCost)
        return price.cost.context_line(
            price.model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens
        )

    def unlined(self) -> str:
        """See `LinedCost`: each member's price has to have lines."""
        return next(filter(None, (why_unlined(price.cost) for price in self._prices.values())), "")

    def draft_terms(self, model: str) -> DraftTerms | None:
        """What a Draft costs as a whole; see `CostModel`. Raises ValueError for a member without a price."""
        price = self._price(model)
        return price.cost.draft_terms(price.model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`: what each member is, then what the costs say, each once."""
        same = [f"{member} is priced as {price.model} on {price.cost.name}" for member, price in self._prices.items()]
        said = dict.fromkeys(note for price in self._prices.values() for note in price.cost.notes())
        return (*same, *said)

    def _price(self, model: str) -> Price:
        price = self._prices.get(model)
        if price is None:
            raise ValueError(f"cost {self.name}: no price for model {model!r}; it has {', '.join(self._prices)}")
        return price


@runtime_checkable
class SharingLinedCost(SharingCost, LinedCost, Protocol):
    """A cost model that has lines, and whose rows may share what is read."""


def scaled(cost: CostModel, factors: Mapping[str, float], *, target: str) -> CostModel:
    """`cost` with the seconds of some members multiplied.

    Of recorded rounds, drafting is scaled as their drafter, verification and prefill as the target.

    Args:
        cost: what is scaled.
        factors: by member; 1e-6 to 1e6.
        target: the pool's last member.

    Raises:
        ValueError: a factor out of range.
    """
    for model, factor in factors.items():
        check_within(f"`scale` of {model}", factor, "[1e-06, 1e+06]")
    if not factors:
        return cost
    if isinstance(cost, RoundCost):
        return ScaledRoundCost(cost, factors, target)
    if isinstance(cost, OperationCost):
        return ScaledOperationCost(cost, factors)
    if isinstance(cost, SharingLinedCost):
        return ScaledSharingCost(cost, factors)
    return ScaledLinedCost(cost, factors) if isinstance(cost, LinedCost) else ScaledCost(cost, factors)


class ScaledCost:
    """Seconds of another cost model, multiplied by a factor for each member; see `scaled`."""

    def __init__(self, cost: CostModel, factors: Mapping[str, float]) -> None:
        self.name = ", ".join([cost.name, *(f"{model} x{factor:g}" for model, factor in factors.items())])
        self.lookup_s = cost.lookup_s
        self._cost = cost
        self._factors = dict(factors)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        seconds = self._cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        return seconds * self._factors.get(model, 1.0)

    def draft_terms(self, model: str) -> DraftTerms | None:
        """What a Draft costs as a whole; see `CostModel`."""
        terms, factor = self._cost.draft_terms(model), self._factors.get(model, 1.0)
        if terms is None:
            return None
        per_token_s = None if terms.per_token_s is None else terms.per_token_s * factor
        return DraftTerms(terms.per_round_s * factor, per_token_s, terms.block)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        return self._cost.notes()


class ScaledLinedCost(ScaledCost):
    """As `ScaledCost`, of a cost model that may say lines."""

    def __init__(self, cost: LinedCost, factors: Mapping[str, float]) -> None:
        super().__init__(cost, factors)
        self._lined = cost

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `LinedCost`."""
        asked = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        line, factor = self._lined.context_line(model, **asked), self._factors.get(model, 1.0)
        return line._replace(start_s=line.start_s * factor, slope_s=line.slope_s * factor)

    def unlined(self) -> str:
        """See `LinedCost`."""
        return why_unlined(self._lined)


class ScaledSharingCost(ScaledLinedCost):
    """As `ScaledLinedCost`, of a cost model whose rows may share what is read."""

    def __init__(self, cost: SharingLinedCost, factors: Mapping[str, float]) -> None:
        super().__init__(cost, factors)
        self._sharing = cost

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """See `SharingCost`."""
        seconds = self._sharing.shared_forward_s(
            model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens, read_tokens=read_tokens
        )
        return seconds * self._factors.get(model, 1.0)


class ScaledRoundCost(ScaledCost):
    """As `ScaledCost`, of a cost model that knows recorded rounds."""

    def __init__(self, cost: RoundCost, factors: Mapping[str, float], target: str) -> None:
        super().__init__(cost, factors)
        self._rounds = cost
        self._target_factor = factors.get(target, 1.0)

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        """Seconds of a recorded round; see `RoundCost`."""
        seconds = self._rounds.round_s(request_id, start, drafter)
        if seconds is None:
            return None
        return seconds[0] * self._factors.get(drafter, 1.0), seconds[1] * self._target_factor

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """See `RoundCost`."""
        scale = self._rounds.round_scale(request_id, drafter)
        return scale._replace(most_draft_s=scale.most_draft_s * self._factors.get(drafter, 1.0))

    def prefill_s(self, request_id: str, method: str) -> float:
        """Seconds before the first round; see `RoundCost`."""
        return self._rounds.prefill_s(request_id, method) * self._target_factor


class ScaledOperationCost(ScaledCost):
    """As `ScaledCost`, of a cost model that knows operations: what is beside forwards stays as it is."""

    def __init__(self, cost: OperationCost, factors: Mapping[str, float]) -> None:
        super().__init__(cost, factors)
        self._operations = cost
        self.shares = cost.shares
        self.lookups_s = cost.lookups_s
        self.beside_s = cost.beside_s
        self.decide_s = cost.decide_s

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        """See `OperationCost`."""
        return self._operations.batch_s(model, shape, first=first) * self._factors.get(model, 1.0)

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        """See `OperationCost`."""
        return self._operations.reloads_s(model, new_tokens, away) * self._factors.get(model, 1.0)
