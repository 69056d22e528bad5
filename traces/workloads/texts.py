"""Texts whose full units have ids: for sessions in which requests go on from what others read and wrote."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text, by the ids of its full units.

    Attributes:
        unit_tokens: of a unit, >= 1.
        num_tokens: of the text, >= 0.
        ids: of its full units, each for the text up to and with it; `num_tokens // unit_tokens`.
    """

    unit_tokens: int
    num_tokens: int = 0
    ids: tuple[int, ...] = ()

    def head(self, num_tokens: int) -> "Text":
        """Its first tokens, at most as many as it has."""
        assert 0 <= num_tokens <= self.num_tokens
        return Text(unit_tokens=self.unit_tokens, num_tokens=num_tokens, ids=self.ids[: num_tokens // self.unit_tokens])

    def grown(self, num_tokens: int, new_ids: Iterator[int]) -> "Text":
        """The text with so many more tokens that no other one has there; units that they fill get new ids."""
        total = self.num_tokens + num_tokens
        new = islice(new_ids, total // self.unit_tokens - len(self.ids))
        return Text(unit_tokens=self.unit_tokens, num_tokens=total, ids=(*self.ids, *new))
