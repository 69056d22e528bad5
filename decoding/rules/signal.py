"""What a drafter says of a token it writes."""

from math import nan
from typing import NamedTuple


class Signal(NamedTuple):
    """NaN throughout for a model-free drafter.

    Scalars, or arrays of one shape where a world works on many tokens at once.

    Attributes:
        prob: the drafter's probability of the token, 0 to 1.
        entropy: of its distribution, nats.
        gap: its largest probability less its second largest, 0 to 1.
    """

    prob: float
    entropy: float
    gap: float


# Of a model-free drafter, and of a context that nobody knows.
NO_SIGNAL = Signal(nan, nan, nan)
