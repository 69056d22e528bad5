"""What if: another cost model's seconds, scaled by member, mapped to another device, or those of other models.

Of the seconds S of a measured forward, the device it was measured on cannot have taken less than its roofline: the
larger of arithmetic and memory time. The rest is the host's (launches, Python, sampling) and the device's shortfall
from its peaks; a measurement does not separate them. So there are three readings:

- `device`: the part that the roofline explains becomes that of the other device, term by term; the rest is kept.
- `all`: everything scales as the rooflines do, S x roofline there / roofline here: no host time, only lost peaks.
- `memory`: only the memory term changes; arithmetic is slow for reasons that another device shares.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isinf

from ...base.errors import check_within
from ...traces.profile import BatchShape, DecideSeconds
from ...traces.rounds.rounds import TARGET_ALONE
from .base import Beside, ContextLine, CostModel, DraftTerms, RoundScale, WrappedCost
from .roofline import RooflineCost

LEAST_PROMPT = 1  # tokens of a prompt of unknown length: weights are read at least once


class MappedBy(StrEnum):
    """How measured seconds are mapped to another device; see the module."""

    device = "device"
    all = "all"
    memory = "memory"


class MappedCost(WrappedCost):
    """Seconds measured with a recording, mapped to another device.

    Of recorded rounds, verification and prefill are the target's, and a drafter's mean is that of one token. `here` and
    `there` are rooflines of the measured device and of the other; `target` is the pool's last member.
    """

    def __init__(
        self, cost: CostModel, here: RooflineCost, there: RooflineCost, reading: MappedBy, *, target: str
    ) -> None:
        super().__init__(cost, f"{cost.name}, {here.name} to {there.name}")
        self.knows_rounds = cost.knows_rounds
        self._here = here
        self._there = there
        self._reading = reading
        self._target = target
        self._faster: dict[str, None] = {}
        self._short = False

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        fed = num_rows if self.knows_rounds and model != self._target else new_tokens
        seconds = self._cost.forward_s(model, num_rows=num_rows, new_tokens=fed, context_tokens=context_tokens)
        return self._moved_s(model, seconds, num_rows=num_rows, new_tokens=fed, context_tokens=context_tokens)

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        seconds = self._cost.round_s(request_id, start, drafter)
        if seconds is None:
            return None
        drafted, held = self._cost.round_shape(request_id, start, drafter)
        draft_s, verify_s = seconds
        if drafted:
            terms = self._here.draft_terms(drafter)
            block = None if terms is None else terms.block
            new, before = (1, held) if block is None else block.forward(1, held, drafted)
            one = {"num_rows": 1, "new_tokens": new, "context_tokens": before}
            draft_s = self._moved_s(drafter, draft_s, **one, times=drafted if block is None else 1)
        return draft_s, self._moved_s(self._target, verify_s, num_rows=1, new_tokens=drafted + 1, context_tokens=held)

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        """See `CostModel`. The most seconds of drafting change as the mean of a drafted token does."""
        scale = self._cost.round_scale(request_id, drafter)
        if isinf(scale.most_draft_s):
            return scale
        one = {"num_rows": 1, "new_tokens": 1, "context_tokens": 0}
        ratio = self.forward_s(drafter, **one) / self._cost.forward_s(drafter, **one)
        return scale._replace(most_draft_s=scale.most_draft_s * ratio)

    def prefill_s(self, request_id: str, method: str) -> float:
        """See `CostModel`. All of it counts as the target's forward over the prompt."""
        seconds = self._cost.prefill_s(request_id, method)
        if not seconds:
            return 0.0
        _, prompt = self._cost.round_shape(request_id, 0, TARGET_ALONE)
        self._short = self._short or not prompt
        return self._moved_s(self._target, seconds, num_rows=1, new_tokens=max(prompt, LEAST_PROMPT), context_tokens=0)

    def notes(self) -> tuple[str, ...]:
        notes = (*self._cost.notes(), *self._here.notes())
        if self._faster:
            faster = ", ".join(self._faster)
            notes += (f"measured faster than the roofline of {self._here.name} allows, in parts: {faster}",)
        if self._short:
            notes += ("prompts of unknown length: of their prefill, one reading of the weights is mapped",)
        return notes

    def _moved_s(
        self, model: str, seconds: float, *, num_rows: int, new_tokens: int, context_tokens: int, times: int = 1
    ) -> float:
        """Seconds on the other device of `times` equal forwards that took `seconds` together."""
        terms = self._here.draft_terms(model)
        if terms is not None and terms.block is None:
            return seconds  # prompt lookup runs on the host
        one = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        here, there = self._here.busy_s(model, **one), self._there.busy_s(model, **one)
        if seconds < times * max(here):
            self._faster[model] = None
        if self._reading is MappedBy.all:
            return seconds * max(there) / max(here)
        term_here, term_there = (here[1], there[1]) if self._reading is MappedBy.memory else (max(here), max(there))
        explained_s = min(seconds, times * term_here)
        return seconds - explained_s + explained_s * term_there / term_here


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Source of one member's seconds."""

    cost: CostModel  # of the other model
    model: str  # its name there


class PricedAsCost(CostModel):
    """Seconds of other models' forwards, member by member: drafters may be on fewer devices than the target.

    Drafts and acceptance remain those of the recording; only the seconds are another model's.

    Raises:
        ValueError: no member has a price; by methods for a member, it has none.
    """

    def __init__(self, name: str, prices: Mapping[str, Price]) -> None:
        if not prices:
            raise ValueError(f"cost {name}: prices must hold at least one member, got {dict(prices)}")
        self.name = name
        self.knows_reads = all(price.cost.knows_reads for price in prices.values())
        self.bound_only = any(price.cost.bound_only for price in prices.values())
        self._prices = dict(prices)
        self.longest = frozenset(name for name, price in prices.items() if price.model in price.cost.longest)

    def forward_s(self, model: str, **fed: int) -> float:
        """See `CostModel`."""
        cost, model = self._price(model)
        return cost.forward_s(model, **fed)

    def shared_forward_s(self, model: str, **fed: int) -> float:
        """See `CostModel`."""
        cost, model = self._price(model)
        return cost.shared_forward_s(model, **fed)

    def context_line(self, model: str, **fed: int) -> ContextLine:
        """See `CostModel`."""
        cost, model = self._price(model)
        return cost.context_line(model, **fed)

    def unlined(self) -> str:
        """See `CostModel`: each member's price must have lines."""
        return next(filter(None, (price.cost.unlined() for price in self._prices.values())), "")

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`; prompt lookup has no price and no terms."""
        price = self._prices.get(model)
        return None if price is None else price.cost.draft_terms(price.model)

    def ends(self, *, whole: bool = False) -> tuple[CostModel, ...]:
        """See `CostModel`: all members at the same end; one whose cost has none is unchanged."""
        known = {name: price.cost.ends(whole=whole) for name, price in self._prices.items()}
        found = []
        for index in range(max(map(len, known.values()))):
            end = copy(self)
            end._prices = {
                name: replace(price, cost=known[name][index]) if known[name] else price
                for name, price in self._prices.items()
            }
            found.append(end)
        return tuple(found)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`: each member's model, then the costs' notes, each once."""
        same = [f"{member} is priced as {price.model} on {price.cost.name}" for member, price in self._prices.items()]
        return (*same, *self._notes())

    def _notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for price in self._prices.values() for note in price.cost.notes()))

    def _price(self, model: str) -> tuple[CostModel, str]:
        price = self._prices.get(model)
        if price is None:
            raise ValueError(f"cost {self.name}: no price for model {model!r}; it has {', '.join(self._prices)}")
        return price.cost, price.model


def scaled(cost: CostModel, factors: Mapping[str, float], *, target: str) -> CostModel:
    """`cost` with the seconds of some members multiplied by `factors`, 1e-6 to 1e6; itself where there are none.

    `target` is the pool's last member.

    Raises:
        ValueError: a factor out of range.
    """
    for model, factor in factors.items():
        check_within(f"`scale` of {model}", factor, "[1e-06, 1e+06]")
    return ScaledCost(cost, factors, target) if factors else cost


class ScaledCost(WrappedCost):
    """Seconds of another cost model, multiplied by a factor for each member; see `scaled`.

    Of recorded rounds, drafting is scaled as their drafter, verification and prefill as the target. Of operations,
    seconds outside forwards are unchanged.
    """

    def __init__(self, cost: CostModel, factors: Mapping[str, float], target: str) -> None:
        super().__init__(cost, ", ".join([cost.name, *(f"{model} x{factor:g}" for model, factor in factors.items())]))
        self.knows_rounds, self.knows_operations = cost.knows_rounds, cost.knows_operations
        self.knows_reads, self.shares = cost.knows_reads, cost.shares
        self._factors = dict(factors)
        self._target = target

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        seconds = self._cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        return seconds * self._factors.get(model, 1.0)

    def draft_terms(self, model: str) -> DraftTerms | None:
        terms, factor = self._cost.draft_terms(model), self._factors.get(model, 1.0)
        return None if terms is None else terms.scaled(factor)

    def ends(self, *, whole: bool = False) -> tuple[CostModel, ...]:
        return tuple(ScaledCost(end, self._factors, self._target) for end in self._cost.ends(whole=whole))

    def unlined(self) -> str:
        return self._cost.unlined()

    def context_line(self, model: str, **fed: int) -> ContextLine:
        """See `CostModel`."""
        line, factor = self._cost.context_line(model, **fed), self._factors.get(model, 1.0)
        return line._replace(start_s=line.start_s * factor, slope_s=line.slope_s * factor)

    def shared_forward_s(self, model: str, **fed: int) -> float:
        """See `CostModel`."""
        return self._cost.shared_forward_s(model, **fed) * self._factors.get(model, 1.0)

    def round_s(self, request_id: str, start: int, drafter: str) -> tuple[float, float] | None:
        seconds = self._cost.round_s(request_id, start, drafter)
        if seconds is None:
            return None
        return seconds[0] * self._factors.get(drafter, 1.0), seconds[1] * self._factors.get(self._target, 1.0)

    def round_scale(self, request_id: str, drafter: str) -> RoundScale:
        scale = self._cost.round_scale(request_id, drafter)
        return scale._replace(most_draft_s=scale.most_draft_s * self._factors.get(drafter, 1.0))

    def prefill_s(self, request_id: str, method: str) -> float:
        return self._cost.prefill_s(request_id, method) * self._factors.get(self._target, 1.0)

    def batch_s(self, model: str, shape: BatchShape, *, first: bool) -> float:
        return self._cost.batch_s(model, shape, first=first) * self._factors.get(model, 1.0)

    def reloads_s(self, model: str, new_tokens: int, away: Iterable[tuple[float, float]]) -> float:
        return self._cost.reloads_s(model, new_tokens, away) * self._factors.get(model, 1.0)

    def beside_s(self, kind: Beside, model: str, **ran: int) -> float:
        """See `CostModel`."""
        return self._cost.beside_s(kind, model, **ran)

    def decide_s(self, policy: str) -> DecideSeconds:
        return self._cost.decide_s(policy)
