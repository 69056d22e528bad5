"""Where plain steps stood that a log counts and does not list: placed by a draw, and marked as placed.

A step in which nothing was drafted emits one token. An answer of known length says how many there were: its tokens
less those of the listed steps. Nothing says where. Every order of listed and plain steps is taken to be equally likely,
which assumes the least.

Letters: R listed steps, P plain ones.
"""

import numpy as np
from numpy.typing import NDArray

MOST_PLAIN = 2**24  # of one answer: more is no answer, and would fill the memory


def place_plain_steps(num_listed: int, num_plain: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """`[R + P]` which steps are plain, all orders equally likely.

    Args:
        num_listed: R.
        num_plain: P, 0 to 2^24.
        generator: draws the order.
    """
    size = num_listed + num_plain
    plain = np.zeros(size, np.bool_)
    plain[generator.permutation(size)[:num_plain]] = True
    return plain


def with_plain_steps(counts: NDArray[np.int64], plain: NDArray[np.bool_]) -> NDArray[np.int64]:
    """`[R + P]` counts of all steps, 0 in plain ones, from `[R]` those of the listed ones."""
    spread = np.zeros(len(plain), np.int64)
    spread[~plain] = counts
    return spread
