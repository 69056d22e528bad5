"""Seconds of members that lie on different devices: each as on its own."""

from collections.abc import Mapping

from ...cost.base import CostModel, DraftTerms, SharingCost
from ...cost.context_line import ContextLine, LinedCost, why_unlined


class PlacedCost:
    """A cost model for each member; prompt lookup costs what it costs the target's.

    Args:
        costs: by member.
        target: the pool's last member.
    """

    def __init__(self, costs: Mapping[str, CostModel], target: str) -> None:
        self.name = ", ".join(f"{member} on {cost.name}" for member, cost in costs.items())
        self._costs = dict(costs)
        self._targets = costs[target]
        self.lookup_s = self._targets.lookup_s

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        cost = self._costs.get(model, self._targets)
        return cost.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)

    def shared_forward_s(
        self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int, read_tokens: int
    ) -> float:
        """See `SharingCost`; to be asked for only where every member's cost is one."""
        cost = self._costs.get(model, self._targets)
        assert isinstance(cost, SharingCost)
        return cost.shared_forward_s(
            model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens, read_tokens=read_tokens
        )

    def context_line(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> ContextLine:
        """See `LinedCost`; to be asked for only where `unlined` says nothing."""
        cost = self._costs.get(model, self._targets)
        assert isinstance(cost, LinedCost)
        return cost.context_line(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)

    def unlined(self) -> str:
        """See `LinedCost`: each member has to have lines."""
        return next(filter(None, map(why_unlined, self._costs.values())), "")

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`."""
        return self._costs.get(model, self._targets).draft_terms(model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`: those of every device, each once."""
        return tuple(dict.fromkeys(note for cost in self._costs.values() for note in cost.notes()))
