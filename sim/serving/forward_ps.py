"""Whole picoseconds of forwards, for the engine that goes step by step and for the one that jumps: the same integers.

Where a cost has lines by the tokens held, picoseconds lie on lines as well: whole ones at the start of a piece, and
whole ones for each token more. A piece is short enough that this rounding takes or adds at most `MOST_ERROR` of a
forward, and half a picosecond. Elsewhere each forward's seconds are rounded once.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from ...traces.workloads.exact_seconds import PS_PER_S
from ..cost.base import CostModel, DraftTerms
from ..cost.context_line import ContextLine, LinedCost, why_unlined
from .clock import to_ps

MOST_ERROR = 5e-8
MOST_KEPT = 2**14  # pieces of lines, a few MB


class PsLine(NamedTuple):
    """Picoseconds of a forward by the tokens held: `start_ps + slope_ps x (held - start)` for `start <= held < end`."""

    start: int
    end: float
    start_ps: int
    slope_ps: int

    def ps(self, context_tokens: int) -> int:
        """Of a forward with so many tokens held."""
        return self.start_ps + self.slope_ps * (context_tokens - self.start)


class ForwardLines:
    """The lines of a cost in picoseconds.

    Args:
        cost: which has lines.
    """

    def __init__(self, cost: LinedCost) -> None:
        self._cost = cost
        self._latest: dict[tuple[str, int, int], PsLine] = {}

    def ps(self, model: str, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        """Picoseconds of one forward; arguments and errors as of `line`."""
        known = self._latest.get((model, num_rows, new_tokens))
        if known is None or not known.start <= context_tokens < known.end:
            known = self.line(model, num_rows, new_tokens, context_tokens)
        start, _, start_ps, slope_ps = known
        return start_ps + slope_ps * (context_tokens - start)

    def line(self, model: str, num_rows: int, new_tokens: int, context_tokens: int) -> PsLine:
        """The line that `context_tokens` lies on; arguments and errors as of `CostModel.forward_s`."""
        key = (model, num_rows, new_tokens)
        known = self._latest.get(key)
        if known is not None and known.start <= context_tokens < known.end:
            return known
        line = self._cost.context_line(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        if len(self._latest) >= MOST_KEPT:
            self._latest.clear()
        found = self._latest[key] = _whole(line, context_tokens)
        return found


class WholeSeconds:
    """A cost whose forwards are what `ForwardLines` says; all else is that of the cost. Exact below 2^51 picoseconds.

    Args:
        cost: which has lines.

    Attributes:
        lines: of its forwards.
    """

    def __init__(self, cost: LinedCost) -> None:
        self.name = cost.name
        self.lookup_s = cost.lookup_s
        self._cost = cost
        self.lines = ForwardLines(cost)

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        return self.lines.ps(model, num_rows, new_tokens, context_tokens) / PS_PER_S

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`."""
        return self._cost.draft_terms(model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        return self._cost.notes()


def in_whole_ps(cost: CostModel) -> CostModel:
    """A cost whose forwards take whole picoseconds on lines, if it has lines; else as it is."""
    return WholeSeconds(cost) if isinstance(cost, LinedCost) and not why_unlined(cost) else cost


def forward_ps_of(cost: CostModel) -> Callable[[str, int, int, int], int]:
    """Picoseconds of one forward, by model, rows, new tokens and tokens held, of a cost as `in_whole_ps` returns it."""
    if isinstance(cost, WholeSeconds):
        return cost.lines.ps

    def forward_ps(model: str, num_rows: int, new_tokens: int, context_tokens: int) -> int:
        asked = {"num_rows": num_rows, "new_tokens": new_tokens, "context_tokens": context_tokens}
        return to_ps(cost.forward_s(model, **asked))

    return forward_ps


def _whole(line: ContextLine, context_tokens: int) -> PsLine:
    """The piece of a line that `context_tokens` lies in; pieces follow from the line alone."""
    start, end, start_s, slope_s = line
    slope = slope_s * PS_PER_S
    slope_ps = round(slope)
    drift = abs(slope - slope_ps)
    length = MOST_ERROR * start_s * PS_PER_S / drift if drift else inf
    if length < end - start:
        tokens = max(1, int(length))
        begin = start
        start += (context_tokens - start) // tokens * tokens
        end = min(end, start + tokens)
        start_s += slope_s * (start - begin)
    return PsLine(start, end, to_ps(start_s), slope_ps)
