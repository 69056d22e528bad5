"""Seconds of every member's forwards over a grid of shapes, in turn, so that a slow spell falls on all alike."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median

import torch

from ...profiles.profile import Shape
from ...progress import Progress
from ..forward.model_forward import ModelForward
from ..kv.device_memory import total_bytes
from ..timing.forward_seconds import timed
from .forward_run import RowsHeld, median_and_spread, settled_s
from .journal import Journal, ShapeKey

# Share of a device's memory that the caches of one shape may take.
_MOST_MEMORY = 0.5

# Shapes of more tokens than this are timed in every third round only: they take long, and vary little.
_LONG_FORWARD = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Shapes that are measured: each number of rows with each number of new tokens after each number of tokens held.

    Attributes:
        rows: strictly increasing, >= 1.
        new_tokens: of each row, strictly increasing, >= 1.
        context_tokens: of each row, strictly increasing, >= 0.
        most_tokens: new tokens of all rows that one forward may have.
        away_s: seconds since weights were read, after which forwards are measured too; strictly increasing, > 0.

    Raises:
        ValueError: an axis that is empty or does not increase.
    """

    rows: tuple[int, ...] = (1, 2, 3, 6, 12, 24)
    new_tokens: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 20, 40, 80, 160)
    context_tokens: tuple[int, ...] = (0, 60, 200, 480, 1100, 2500)
    most_tokens: int = 1024
    away_s: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.02)

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("new_tokens", 1), ("context_tokens", 0)):
            axis = getattr(self, name)
            if not axis or axis[0] < least or any(a >= b for a, b in pairwise(axis)):
                raise ValueError(f"{name} must be strictly increasing from >= {least}, got {axis}")
        if not self.away_s or any(a >= b for a, b in pairwise((0.0, *self.away_s))):
            raise ValueError(f"away_s must be strictly increasing from above 0, got {self.away_s}")

    def shapes(self, longest: int) -> Iterator[tuple[int, int, int]]:
        """(rows, tokens held, new tokens) of all shapes within a context of `longest` tokens, small ones first."""
        for rows, context, new in product(self.rows, self.context_tokens, self.new_tokens):
            if context + new <= longest and rows * new <= self.most_tokens:
                yield rows, context, new


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredForwards:
    """What was measured.

    Attributes:
        shapes: of all members.
        drift: relative change of a shape's seconds from the first third of the rounds to the last, median over shapes.
        left_out: shapes whose caches would not fit into memory, in words.
    """

    shapes: tuple[Shape, ...]
    drift: float
    left_out: tuple[str, ...]

    def of(self, member: str) -> tuple[Shape, ...]:
        """The shapes of one member."""
        return tuple(shape for shape in self.shapes if shape.member == member)


@torch.inference_mode()
def measure_forwards(
    forwards: Mapping[str, ModelForward],
    grid: Grid,
    *,
    longest: int,
    repeats: int = 3,
    journal: Journal | None = None,
) -> MeasuredForwards:
    """Time every shape of the grid.

    A round times the shapes of all members, member after member for each number of rows and tokens held; the
    first round warms up.

    Args:
        forwards: by member.
        grid: the shapes.
        longest: context of the pool, in tokens.
        repeats: counted rounds, >= 3.
        journal: of what was measured before, which is not measured again, and of what is measured now; mutated.
    """
    if repeats < 3:
        raise ValueError(f"repeats must be >= 3, got {repeats}")
    asked = _asked(grid, longest)
    taken: dict[ShapeKey, list[float]] = {}
    left_out: list[str] = []
    groups = sorted({(rows, context) for rows, context, _ in asked})
    total = (repeats + 1) * len(groups)
    done = 0 if journal is None else min(len(journal), total)
    with Progress("profiling forwards", total, unit="groups of shapes", done=done) as progress:
        for number in range(repeats + 1):
            for rows, context in groups:
                known = None if journal is None else journal.known(number, (rows, context))
                found = {} if known is None else known
                counts = [new for r, c, new in asked if (r, c) == (rows, context)]
                for name, forward in forwards.items():
                    fitting = [count for count in counts if _fits(forward, rows, context + count)]
                    if not number and len(fitting) < len(counts):
                        left_out.append(f"{name}: {rows} x {counts[len(fitting)]} and more after {context}")
                    if known is None:
                        found |= _time_group(forward, name, rows, context, _due(fitting, rows, number))
                for key, seconds in found.items():
                    taken.setdefault(key, []).append(seconds)
                if known is None:
                    progress.advance()
                    if journal is not None:
                        journal.note(number, (rows, context), found)
    return MeasuredForwards(
        shapes=tuple(_shape(key, seconds[1:]) for key, seconds in sorted(taken.items())),
        drift=_drift(taken, repeats),
        left_out=tuple(left_out),
    )


def _asked(grid: Grid, longest: int) -> list[tuple[int, int, int]]:
    """(rows, tokens held, new tokens) of all shapes; raises ValueError if there are none."""
    asked = list(grid.shapes(longest))
    if not asked:
        raise ValueError(f"no shape of the grid fits {longest} tokens of context and `most_tokens` {grid.most_tokens}")
    return asked


def _due(counts: Sequence[int], rows: int, number: int) -> list[int]:
    return [count for count in counts if rows * count <= _LONG_FORWARD or number < 2 or number % 3 == 0]


def _fits(forward: ModelForward, rows: int, tokens: int) -> bool:
    shape = forward.kv_shape
    return rows * tokens * shape.bytes_per_slot <= _MOST_MEMORY * total_bytes(shape.device)


def _time_group(
    forward: ModelForward, name: str, rows: int, context: int, counts: Sequence[int]
) -> dict[ShapeKey, float]:
    if not counts:
        return {}
    held, device = RowsHeld(forward, [context] * rows), forward.kv_shape.device
    taken = {}
    for count in counts:
        run = held.run_of([count] * rows)[1]
        long = rows * count > _LONG_FORWARD
        taken[name, rows, count, context] = timed(run, device) if long else settled_s(run, rows * count, device)
    return taken


def _shape(key: ShapeKey, seconds: Sequence[float]) -> Shape:
    middle, spread = median_and_spread(seconds)
    return Shape(*key, seconds=middle, spread=spread)


def _drift(taken: Mapping[ShapeKey, Sequence[float]], repeats: int) -> float:
    third = max(1, repeats // 3)
    steady = [seconds[1:] for seconds in taken.values() if len(seconds) == repeats + 1]
    if not steady:  # long forwards only, which are timed in some rounds
        steady = [seconds for seconds in taken.values() if len(seconds) > 1]
    return abs(median(median(seconds[-third:]) / median(seconds[:third]) for seconds in steady) - 1)
