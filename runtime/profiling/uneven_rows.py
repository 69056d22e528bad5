"""What rows of unequal length, or apart from each other, cost a forward: measured, and fitted to a few terms.

Letters: M measured forwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import torch
from scipy.optimize import nnls

from ...profiles.batch_shape import BatchShape
from ...profiles.forward_terms import UnevenRows
from ...profiles.forwards import ProfiledForwards
from ...progress import Progress
from ..forward.model_forward import ModelForward
from .forward_run import RowsHeld, settled_s

_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Rows:
    """A forward to be measured: tokens that each row holds, and new ones; rows that hold nothing come last."""

    held: tuple[int, ...]
    counts: tuple[int, ...]
    apart: bool = False


_CASES = (
    Rows((20, 100), (2, 5)),
    Rows((90, 40, 60), (1, 7, 2)),
    Rows((40, 110, 60), (3, 3, 3)),
    Rows((40, 110, 60), (3, 3, 3), apart=True),
    Rows((60, 60, 60), (1, 1, 1), apart=True),
    Rows((200, 150, 180), (1, 4, 2), apart=True),
    Rows((70, 30, 50, 110, 40, 60), (1, 6, 2, 4, 9, 3)),
    Rows((70, 30, 50, 110, 40, 60), (1, 1, 2, 1, 1, 2), apart=True),
    Rows((180, 220, 150, 240, 200, 190), (2, 8, 3, 5, 1, 2)),
    Rows((60, 80, 45, 90, 70, 0), (3, 1, 2, 3, 1, 35)),
    Rows((60, 80, 0), (4, 2, 50)),
    Rows((70, 30, 50, 110, 40, 60) * 2, (1, 6, 2, 4, 9, 3) * 2),
    Rows((70, 30, 50, 110, 40, 60) * 2, (4,) * 12, apart=True),
    Rows((*(70, 30, 50, 110, 40) * 2, 0, 0), (*(1, 6, 2, 4, 3) * 2, 40, 30)),
)


@torch.inference_mode()
def measure_uneven(
    forwards: Mapping[str, ModelForward], even: Mapping[str, ProfiledForwards], *, longest: int
) -> dict[str, UnevenRows]:
    """By member.

    Args:
        forwards: of the members.
        even: what was measured with rows of equal length.
        longest: context of the pool, in tokens; rows hold less where it has no room for what a case holds, and cases
            that it has no room for even so are left out.
    """
    cases = cases_within(longest)
    shapes: dict[tuple[str, int], BatchShape] = {}
    taken: dict[tuple[str, int], list[float]] = {}
    with Progress("profiling uneven rows", _REPEATS * len(cases), unit="shapes") as progress:
        for _ in range(_REPEATS):
            for place, case in enumerate(cases):
                for name, forward in forwards.items():
                    shapes[name, place], run = RowsHeld(forward, case.held, apart=case.apart).run_of(case.counts)
                    seconds = settled_s(run, sum(case.counts), forward.kv_shape.device)
                    taken.setdefault((name, place), []).append(seconds)
                progress.advance()
    return {
        name: _fit([(shapes[name, place], median(taken[name, place])) for place in range(len(cases))], even[name])
        for name in forwards
    }


def cases_within(longest: int) -> list[Rows]:
    """The forwards that are measured within a context of so many tokens."""
    return [fitted for case in _CASES if (fitted := _within(case, longest)) is not None]


def _within(case: Rows, longest: int) -> Rows | None:
    """A case whose rows hold as much less, in proportion, as a context needs; None where its new tokens do not fit."""
    most_held = longest - max(case.counts)
    if most_held < 1:
        return None
    share = min(1.0, most_held / max(case.held))
    return replace(case, held=tuple(max(1, int(share * held)) if held else 0 for held in case.held))


def _fit(measured: Sequence[tuple[BatchShape, float]], even: ProfiledForwards) -> UnevenRows:
    """Non-negative least squares of what `[M]` forwards took beyond even ones, as shares of their seconds."""
    if not measured:
        return UnevenRows()
    terms = np.array([_terms(shape) for shape, _ in measured], dtype=np.float64)
    seconds = np.array([taken_s for _, taken_s in measured])
    beyond = seconds - np.array([even.even_seconds(shape) for shape, _ in measured])
    scale = np.maximum((terms / seconds[:, None]).max(axis=0), np.finfo(float).tiny)
    solved, _ = nnls(terms / seconds[:, None] / scale, beyond / seconds)
    per_padding, per_pair, apart, per_gathered = (solved / scale).tolist()
    return UnevenRows(
        per_padding_s=per_padding, per_padding_pair_s=per_pair, apart_s=apart, per_gathered_slot_s=per_gathered
    )


def _terms(shape: BatchShape) -> tuple[float, ...]:
    """Those of `UnevenRows.seconds`, in the order of its fields."""
    return tuple(UnevenRows(**{name: 1.0}).seconds(shape) for name in UnevenRows.model_fields)
