"""What if a model were faster: seconds of another cost model, scaled by member."""

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from ....arguments import check_within
from ....profiles.batch_shape import BatchShape
from ..base import CostModel, DraftTerms, OperationCost, RoundCost, RoundScale, SharingCost
from ..context_line import ContextLine, LinedCost, why_unlined


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
