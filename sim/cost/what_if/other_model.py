"""What if the members of a recording were other models: each one's forwards at the price of another model's."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..base import LOOKUP_S, CostModel, DraftTerms
from ..context_line import ContextLine, LinedCost, why_unlined


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
