"""What a round says of a token that another round drafts at the same position, from another start.

Let h_d be the share of rounds that agree at depth d among those that got there. Of one position, a drafter started
later on the same true text has more of the truth before it, so it agrees wherever the one started earlier did. That is
a monotone coupling: one number u, uniform on [0, 1), belongs to the position, and a round whose depth there is d agrees
where u < g_d, with g falling in d. So, of a token at depth d where another round was at depth k,

    P(agrees | the other agreed)      = min(1, g_d / g_k)
    P(agrees | the other was refused) = max(0, (g_d - g_k) / (1 - g_k)).

The first is 1 for a round started later (d < k), and the second is 0 for one started earlier. (The coupling of two
uniform numbers that are equal is the one of most agreement: Fréchet 1951, Hoeffding 1940.)

g is h made non-increasing (pool adjacent violators; Ayer et al. 1955). Where h rises with depth, that is not because
a round gets better as it gets longer: easy texts are over-represented among rounds that got far. To divide such h by
each other would take from a token what its position has already shown.
"""

from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Outcome(Enum):
    """How another round ended at a position, or that it came to it and drafted no farther."""

    agreed = "agreed"
    refused = "refused"
    reached = "reached"


class Beside(NamedTuple):
    """What a round that started elsewhere says of a position.

    Attributes:
        outcome: of the other round there.
        depth: of the position in the other round, >= 0.
    """

    outcome: Outcome
    depth: int


def chance_beside(here: float, there: float, outcome: Outcome) -> float:
    """Probability that a token agrees, given how another round ended at its position.

    Args:
        here: g at the token's own depth, 0 to 1.
        there: g at the depth of the other round.
        outcome: agreed or refused.
    """
    if outcome is Outcome.agreed:
        return min(1.0, here / there) if there > 0.0 else 1.0
    return max(0.0, (here - there) / (1.0 - there)) if there < 1.0 else 0.0


def falling(values: Floats, weights: Floats) -> Floats:
    """`values` made non-increasing: the closest such sequence by weighted squares, neighbours pooled where they rise.

    Args:
        values: `[D]`.
        weights: `[D]` >= 0; where two neighbours both weigh nothing they count alike.
    """
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        means.append(value)
        masses.append(max(weight, 1e-9))
        sizes.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            mass = masses[-2] + masses[-1]
            means[-2] = (means[-2] * masses[-2] + means[-1] * masses[-1]) / mass
            masses[-2] = mass
            sizes[-2] += sizes[-1]
            del means[-1], masses[-1], sizes[-1]
    return np.repeat(means, sizes)
