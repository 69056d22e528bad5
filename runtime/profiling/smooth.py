"""A smooth model of a member's forwards, for shapes that nobody measured."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ...profiles.forward_terms import SmoothForward
from ...profiles.profile import Shape

# Every so manieth shape is left out of the fit that is judged.
_HELD_OUT = 4


def fit_smooth(shapes: Sequence[Shape]) -> SmoothForward:
    """Fit the terms of `SmoothForward` to one member's shapes by non-negative least squares of relative errors.

    Args:
        shapes: measured, at least one; of fewer than four the error is not known.
    """
    terms, seconds = _terms(shapes), np.array([shape.seconds for shape in shapes])
    held_out = np.arange(len(shapes)) % _HELD_OUT == _HELD_OUT - 1
    error = None
    if held_out.any():
        found = terms[held_out] @ _fit(terms[~held_out], seconds[~held_out])
        error = median(np.abs(found / seconds[held_out] - 1).tolist())
    intercept, per_row, per_new, per_context, per_pair = _fit(terms, seconds).tolist()
    return SmoothForward(
        intercept_s=intercept,
        per_row_s=per_row,
        per_new_token_s=per_new,
        per_context_token_s=per_context,
        per_pair_s=per_pair,
        held_out_error=error,
    )


def _terms(shapes: Sequence[Shape]) -> NDArray[np.float64]:
    return np.array(
        [
            [1, shape.rows, shape.rows * shape.new_tokens, shape.rows * shape.context_tokens,
             shape.rows * shape.new_tokens * shape.context_tokens]
            for shape in shapes
        ],
        dtype=np.float64,
    )  # fmt: skip


def _fit(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients, none negative; columns are scaled, since tokens and pairs of them differ by orders of magnitude."""
    relative = terms / seconds[:, None]
    scale = np.maximum(relative.max(axis=0), np.finfo(float).tiny)
    solved, _ = nnls(relative / scale, np.ones(len(seconds)))
    return np.asarray(solved / scale)
