"""Pending tokens with all that is known of them, as values."""

from typing import NamedTuple


class Standing(NamedTuple):
    """Pending tokens, with the columns of `RequestText`."""

    tokens: list[int]
    places: list[int]
    drafters: list[int]
    judges: list[int]

    def since(self, start: int) -> "Standing":
        """Those from index `start` on."""
        return Standing(*[column[start:] for column in self])


NOTHING = Standing([], [], [], [])
