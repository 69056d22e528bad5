"""The difficulty of positions along a text: a standard normal autoregressive walk, on a grid.

From one position to the next, z' = rho z + sqrt(1 - rho^2) e; rho is its persistence.

Letters: G points of the grid for z.
"""

from collections.abc import Callable
from math import erfc, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SETTLING = 12  # rounds after which a chain of them counts as settled
STEP = 0.05
Z: Floats = np.linspace(-5.0, 5.0, 201)
BELOW: Floats = np.array([0.5 * erfc(-z / sqrt(2.0)) for z in Z])
_HIGHEST = 0.99
_HALVINGS = 10


def density(z: Floats) -> Floats:
    """Of a standard normal number."""
    found: Floats = np.exp(-0.5 * z * z) / sqrt(2.0 * np.pi)
    return found


def quantile(probability: Floats) -> Floats:
    """The number that a standard normal one is below with this probability, within the grid."""
    return np.interp(probability, BELOW, Z)


def steps_of(rho: float, tokens: NDArray[np.integer[Any]] | int = 1) -> Floats:
    """`[G, G]` chances of where the walk is so many tokens, of each point or of all alike, after each point."""
    kept = np.broadcast_to(rho**tokens, len(Z))[:, None]
    chances = density((Z - kept * Z[:, None]) / np.sqrt(1.0 - kept**2))
    steps: Floats = chances / chances.sum(axis=1, keepdims=True)
    return steps


def persistence_of(alike: Callable[[float], float], wanted: float) -> float:
    """The rho, 0 to 0.99, under which neighbouring rounds are as `alike` as wanted; it grows with rho."""
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if alike(middle) < wanted else (low, middle)
    return low
