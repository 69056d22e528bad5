"""Measured seconds on another device: the parts that a roofline explains change with the device, the host's do not.

Of the seconds S of a measured forward, the device it was measured on cannot have taken less than its roofline: the
larger of arithmetic and memory time. What is left is the host's (launches, Python, sampling) and whatever the device
falls short of its peaks; a measurement does not tell them apart. So three readings:

- `device`: what the roofline explains takes what it takes on the other device, term by term; the rest stays.
- `all`: everything scales as the rooflines do, S x roofline there / roofline here: no host time, only lost peaks.
- `memory`: only the memory term changes; arithmetic is slow for reasons that another device shares.
"""

from enum import StrEnum
from math import isinf

from ..base import CostModel, DraftTerms, RoundCost, RoundScale
from ..roofline import RooflineCost
from ..timed import TimedCost

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
