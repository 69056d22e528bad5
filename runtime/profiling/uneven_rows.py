"""What rows of unequal length, or apart from each other, cost a forward: measured, and fitted to a few terms.

Letters: M measured forwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
class _Rows:
    """A forward to be measured: tokens that each row holds, and new ones; rows that hold nothing come last."""

    held: tuple[int, ...]
    counts: tuple[int, ...]
    apart: bool = False


_CASES = (
    _Rows((20, 100), (2, 5)),
    _Rows((90, 40, 60), (1, 7, 2)),
    _Rows((40, 110, 60), (3, 3, 3)),
    _Rows((40, 110, 60), (3, 3, 3), apart=True),
    _Rows((60, 60, 60), (1, 1, 1), apart=True),
    _Rows((200, 150, 180), (1, 4, 2), apart=True),
    _Rows((70, 30, 50, 110, 40, 60), (1, 6, 2, 4, 9, 3)),
    _Rows((70, 30, 50, 110, 40, 60), (1, 1, 2, 1, 1, 2), apart=True),
    _Rows((180, 220, 150, 240, 200, 190), (2, 8, 3, 5, 1, 2)),
    _Rows((60, 80, 45, 90, 70, 0), (3, 1, 2, 3, 1, 35)),
    _Rows((60, 80, 0), (4, 2, 50)),
    _Rows((70, 30, 50, 110, 40, 60) * 2, (1, 6, 2, 4, 9, 3) * 2),
    _Rows((70, 30, 50, 110, 40, 60) * 2, (4,) * 12, apart=True),
    _Rows((*(70, 30, 50, 110, 40) * 2, 0, 0), (*(1, 6, 2, 4, 3) * 2, 40, 30)),
)


@torch.inference_mode()
def measure_uneven(
    forwards: Mapping[str, ModelForward], even: Mapping[str, ProfiledForwards], *, longest: int
) -> dict[str, UnevenRows]:
    """By member.

    Args:
        forwards: of the members.
        even: what was measured with rows of equal length.
        longest: context of the pool, in tokens; longer cases are left out.
    """
    cases = [case for case in _CASES if max(map(sum, zip(case.held, case.counts, strict=True))) <= longest]
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
