"""Costs with lines: steep, flat, bent, and with shares of picoseconds."""

from functools import partial

from paceline.sim.cost.base import ContextLine
from paceline.sim.cost.files import CostGrid, CostLine, FileCost

from .served_runs import LineCost


class LinedLineCost(LineCost):
    """As `LineCost`, which is a line."""

    def context_line(self, model, *, num_rows, new_tokens, context_tokens):
        each, new, context = self._terms
        scale = self._scale[model] / 10**6
        return ContextLine(0, float("inf"), scale * (each + num_rows + new * new_tokens), scale * context)

    def unlined(self):
        return ""


def grid(tables):
    """Bent twice, falling once."""
    figures = CostGrid(
        new_tokens=(1, 8, 64),
        context_tokens=(0, 50, 200),
        seconds=((4e-5, 5e-5, 4.5e-5), (5e-5, 7e-5, 9e-5), (1e-4,) * 3),
    )
    return FileCost("grid", dict.fromkeys(tables.pool.names, figures), extrapolate=True)


def line(tables, **terms):
    """A line with parts of picoseconds."""
    return FileCost("line", dict.fromkeys(tables.pool.names, CostLine(**terms)))


COSTS = (
    LinedLineCost,
    partial(LinedLineCost, context=0),
    grid,
    partial(line, intercept_s=3e-5, per_new_token_s=1.23e-6, per_kv_token_s=1.0e-9 / 3),
    partial(line, intercept_s=1e-9, per_kv_token_s=0.4e-12),
    partial(line, intercept_s=1e-4),
)
