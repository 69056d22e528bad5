"""How far apart rounding alone puts the logits of two ways to compute the same."""

import torch
from torch import Tensor

# Largest difference of logits that rounding explains, as a share of the largest logit.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}


def apart_by_more_than_rounding(
    found: Tensor, expected: Tensor, dtype: torch.dtype, *, most: float = 1.0
) -> tuple[float, float] | None:
    """(largest difference, what rounding explains) of logits that are further apart; None of those that are not.

    Broken weights are the guards' business, as long as both show them.

    Args:
        found: of one way.
        expected: of the other, of the same shape.
        dtype: of the model that computed them.
        most: of the largest logit, where rounding has less room than usual.
    """
    finite = expected.isfinite()
    any_finite = bool(finite.any())
    worst = float((found - expected)[finite].abs().max()) if any_finite else 0.0
    limit = min(TOLERANCES[dtype], most) * float(expected[finite].abs().max()) if any_finite else 0.0
    # Not `worst > limit`, which is false for NaN.
    return None if worst <= limit and bool((found.isfinite() == finite).all()) else (worst, limit)
