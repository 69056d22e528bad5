"""What operations cost beside their forwards, from operations that were watched."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from scipy.optimize import nnls

from ...profiles.meta import BesideForwards
from .probe import ProbedOp

# An operation that took so many times the median of those like it was interrupted by something else on the machine.
_INTERRUPTED = 4.0


def fit_beside(ops: Sequence[ProbedOp]) -> BesideForwards:
    """Seconds by operation, forward, row and token, by non-negative least squares over means of operations alike.

    Args:
        ops: of one kind; without any it is nothing.
    """
    if not ops:
        return BesideForwards()
    alike: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for op in ops:
        alike[len(op.forwards), op.num_rows, op.num_tokens].append(op.beside_s)
    means, weights, terms = [], [], []
    for counts, seconds in alike.items():
        kept = [one for one in seconds if one <= _INTERRUPTED * median(seconds)]
        means.append(sum(kept) / len(kept))
        weights.append(len(kept) ** 0.5)
        terms.append((1.0, *map(float, counts)))
    # Relative errors count: an operation of one request must come out as right as one of many.
    scale = np.array(weights) / np.array(means)
    solved, _ = nnls(np.array(terms) * scale[:, None], np.array(means) * scale)
    per_op_s, per_forward_s, per_row_s, per_token_s = solved.tolist()
    return BesideForwards(per_op_s=per_op_s, per_forward_s=per_forward_s, per_row_s=per_row_s, per_token_s=per_token_s)
