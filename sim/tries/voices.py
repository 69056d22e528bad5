"""What a member says at recorded contexts, whichever lists hold it.

A drafter from the target's states says something else at each depth (`traces.tries.features`); all others say the same.
Letters: N nodes, L levels.
"""

from math import nan
from typing import Any

from .request_tables import RequestTables


class Voice:
    """One member, at one depth where it is such a drafter.

    Args:
        tables: of the request.
        level: of the member.
        depth: tokens of the context that the target has not judged, >= 1; 1 for all other members.
    """

    __slots__ = ("_depth", "_level", "_tables")

    def __init__(self, tables: RequestTables, level: int, depth: int) -> None:
        self._tables, self._level, self._depth = tables, level, depth

    @property
    def is_recorded(self) -> bool:
        """Whether the recording holds this depth."""
        return self._depth <= self._tables.depths

    def next_token(self, node: int) -> int:
        """The token written at a node."""
        token: int = self._rows("next_token")[node]
        return token

    def child(self, node: int) -> int:
        """The node after that token, -1 where it is not recorded."""
        child: int = self._rows("child")[node]
        return child

    def number(self, name: str, node: int) -> float:
        """One of `next_log_prob`, `top_log_prob`, `gap`, `entropy` and `own_log_prob` (the parent's view) at a node."""
        number: float = self._rows(name)[node]
        return number

    def distance(self, other: "Voice", node: int) -> float:
        """Total variation distance of two members at a node; NaN with a model-free one."""
        if self._level == other._level or self._depth == other._depth == 1:
            return self._tables.tvd[self._level][other._level][node]
        if self._depth == 1:
            return other.distance(self, node)
        row: list[float] | None = self._tables.further_tvd[self._depth - 2][other._level]
        return nan if row is None else row[node]

    def _rows(self, name: str) -> list[Any]:
        """`[N]` of this depth."""
        rows: list[Any] = (
            getattr(self._tables, name)[self._level]
            if self._depth == 1
            else getattr(self._tables, f"further_{name}")[self._depth - 2]
        )
        return rows
