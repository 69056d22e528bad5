"""Logistic regression by Newton's method, and how well its chances rank and fit what happened.

Letters: N rows, F columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RIDGE = 1.0  # pulls weights towards 0, as much as one row does; it keeps separable rows from infinite weights
MOST_STEPS = 100
BINS = 10


def fit_logistic(rows: Floats, happened: Bools) -> Floats:
    """`[1 + F]` bias and weights of largest likelihood, less half the squared weights (the bias is free).

    Args:
        rows: `[N, F]`.
        happened: `[N]`, both values among them.

    Raises:
        ValueError: one value only, of which no bias is known.
    """
    if happened.all() or not happened.any():
        raise ValueError("happened must hold both values")
    design = np.column_stack([np.ones(len(rows)), rows])
    ridge = np.diag([0.0] + [RIDGE] * rows.shape[1])
    weights = np.zeros(design.shape[1])
    for _ in range(MOST_STEPS):
        chances = chances_of(rows, weights)
        slope = design.T @ (chances - happened) + ridge @ weights
        curve = (design * (chances * (1.0 - chances))[:, None]).T @ design + ridge
        step: Floats = np.linalg.solve(curve, slope)
        weights -= step
        if np.abs(step).max() < 1e-10:
            break
    return weights


def chances_of(rows: Floats, weights: Floats) -> Floats:
    """`[N]` chances of `[N, F]` rows, by `[1 + F]` bias and weights."""
    chances: Floats = 1.0 / (1.0 + np.exp(-(weights[0] + rows @ weights[1:])))
    return chances


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How chances stand to what happened, on rows that nothing was fitted to.

    Attributes:
        num_rows: N, >= 1.
        share: of rows in which it happened, 0 to 1.
        auc: chance that a row in which it happened is ranked above one in which it did not, ties counting half, 0 to 1;
            0.5 says nothing.
        calibration_error: of ten bins of equally many rows, sorted by chance, the mean distance of the mean chance from
            the share in which it happened, 0 to 1.
    """

    num_rows: int
    share: float
    auc: float
    calibration_error: float


def fit_of(chances: Floats, happened: Bools) -> Fit:
    """Compare `[N]` chances with `[N]` what happened, both values among them."""
    order = np.argsort(chances, kind="stable")
    bins = [part for part in np.array_split(order, BINS) if len(part)]
    errors = [abs(float(chances[part].mean() - happened[part].mean())) * len(part) for part in bins]
    return Fit(
        num_rows=len(chances),
        share=float(happened.mean()),
        auc=_auc(chances, happened),
        calibration_error=sum(errors) / len(chances),
    )


def _auc(chances: Floats, happened: Bools) -> float:
    """By the mean ranks of Mann and Whitney."""
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - counts + (counts + 1) / 2)[place]
    positive = int(happened.sum())
    above = ranks[happened].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(chances) - positive)))
