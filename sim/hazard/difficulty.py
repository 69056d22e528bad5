"""Difficulty along a text: rounds that start near each other tend to end alike.

The difficulty z of a position is a standard normal number. Along the text it is an autoregressive walk,
z_(p+1) = rho z_p + sqrt(1 - rho^2) e. A round started at difficulty z keeps at least k tokens where F(z) < S(k), with S
the product-limit of `depths` and F the distribution of difficulty at round starts, so that the lengths of rounds have
exactly that product-limit. To tie the decisions *within* a round instead would count twice what S holds already: that
those who got far get farther.

Letters: N rounds of all requests, R requests, W most tokens a round kept, G points of a grid for z.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counts import Told

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

_BLOCK = 128
_HIGHEST = 0.99
_HALVINGS = 10
_SETTLING = 12
_Z = np.linspace(-5.0, 5.0, 201)
_PHI = np.array([0.5 * erfc(-z / sqrt(2.0)) for z in _Z])


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyFit:
    """How difficulty goes along a text.

    Attributes:
        persistence: rho, 0 to 0.99.
        share: `[G]` F, the share of round starts below each point of the grid.
    """

    persistence: float
    share: Floats


def no_persistence() -> DifficultyFit:
    """Every position has a difficulty of its own."""
    return DifficultyFit(persistence=0.0, share=_PHI)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """How alike neighbouring rounds of a recording are.

    Attributes:
        wanted: mean product of the scores of neighbouring rounds, less that of any two rounds of their request.
        chained: whether rounds follow one another; otherwise they start at every position.
    """

    wanted: float
    chained: bool


def neighbours(told: Told, survival: Floats) -> Neighbours | None:
    """What the recording says; None if no two rounds are neighbours.

    A round tells z up to an interval; its score is the mean of a standard normal there. What any two rounds of a
    request have in common is taken off: it is what the fit of the request missed, or took away.

    Args:
        told: the rounds.
        survival: `[R, W + 1]` by request, the share of rounds that keep at least 0, 1, ... W tokens.
    """
    same = told.request[1:] == told.request[:-1]
    gap = told.start[1:] - told.start[:-1]
    chained = not np.any(same & (gap <= told.accepted[:-1]))
    first = np.flatnonzero(same & (gap == (told.accepted[:-1] + 1 if chained else 1)))
    if not len(first):
        return None
    score = _scores(survival, told.request, told.accepted, told.refused)
    wanted = float((score[first] * score[first + 1] - _common(told.request, score)[first]).mean())
    return Neighbours(wanted=wanted, chained=chained)


def fit_difficulty(found: Neighbours | None, typical: Floats) -> DifficultyFit:
    """The walk whose neighbouring rounds are as alike as recorded ones.

    Args:
        found: how alike they are.
        typical: `[W + 1]` share of rounds of a typical request that keep at least 0, 1, ... W tokens.
    """
    if found is None:
        return no_persistence()
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        alike = _alike(typical, middle, chained=found.chained)[0]
        low, high = (middle, high) if alike < found.wanted else (low, middle)
    return DifficultyFit(persistence=low, share=_alike(typical, low, chained=found.chained)[1])


def scores_by_kept(typical: Floats) -> Floats:
    """`[W + 1]` mean of z, given how many tokens a round of a typical request kept."""
    kept = np.arange(len(typical))
    return _scores(typical[None, :], np.zeros_like(kept), kept, kept < len(typical) - 1)


def _scores(survival: Floats, request: Ints, accepted: Ints, refused: NDArray[np.bool_]) -> Floats:
    """`[N]` mean of z, given how each round ended."""
    most = survival.shape[1] - 1
    above = survival[request, np.minimum(accepted, most)]
    below = np.where(refused, survival[request, np.minimum(accepted + 1, most)], 0.0)
    width = above - below
    density = _density(_quantile(below)) - _density(_quantile(above))
    return np.where(width > 1e-9, density / np.maximum(width, 1e-9), _quantile(above))


def _common(request: Ints, score: Floats) -> Floats:
    """`[N]` mean product of the scores of two rounds of the round's request, near or far."""
    count = np.bincount(request)
    total, squares = np.bincount(request, score), np.bincount(request, score**2)
    mean: Floats = (total**2 - squares) / np.maximum(count * (count - 1), 1)
    return mean[request]


def _alike(survival: Floats, rho: float, *, chained: bool) -> tuple[float, Floats]:
    """(mean product of the scores of neighbouring rounds, F) under the walk.

    Rounds that follow one another jump over easy text and stop in difficult text, so that their starts are more
    difficult than positions are. F belongs to the chain of round starts, z' = rho^k z + sqrt(1 - rho^(2k)) e with k the
    tokens of a round that starts at z, once it has settled. Where rounds were recorded at every position, each is the
    neighbour of the next and F is the normal distribution.
    """
    share, starts = _PHI, _density(_Z) * (_Z[1] - _Z[0])
    kept, steps = _kept(share, survival), _steps(1, rho)
    for _ in range(_SETTLING if chained else 0):
        kept = _kept(share, survival)
        steps = _steps(kept + 1, rho)
        for _ in range(_SETTLING):
            starts = starts @ steps
        share = np.cumsum(starts) - starts / 2.0
    score = _scores(survival[None, :], np.zeros_like(kept), kept, kept < len(survival) - 1)
    return float(((starts * score) @ steps) @ score), share


def _kept(share: Floats, survival: Floats) -> NDArray[np.int64]:
    """`[G]` tokens that a round keeps at each point of the grid."""
    kept: NDArray[np.int64] = (share[:, None] < survival[1:]).sum(axis=1)
    return kept


def _steps(tokens: Ints | int, rho: float) -> Floats:
    """`[G, G]` chances of where the walk is so many tokens after each point of the grid."""
    kept = np.broadcast_to(rho**tokens, len(_Z))[:, None]
    chances = _density((_Z - kept * _Z[:, None]) / np.sqrt(1.0 - kept**2))
    steps: Floats = chances / chances.sum(axis=1, keepdims=True)
    return steps


def walk(generator: np.random.Generator, fit: DifficultyFit) -> Iterator[list[float]]:
    """F(z) of one output position after another, in blocks, without end."""
    rho = fit.persistence
    fresh = sqrt(1.0 - rho * rho)
    z = float(generator.standard_normal())
    while True:
        block: list[float] = []
        for step in generator.standard_normal(_BLOCK).tolist():
            block.append(z)
            z = rho * z + fresh * step
        yield np.interp(block, _Z, fit.share).tolist()


def _quantile(probability: Floats) -> Floats:
    return np.interp(probability, _PHI, _Z)


def _density(z: Floats) -> Floats:
    density: Floats = np.exp(-0.5 * z * z) / sqrt(2.0 * np.pi)
    return density
