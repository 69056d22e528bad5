"""Difficulty along a text: rounds that start near each other tend to end alike.

The difficulty z of a position is a standard normal number. Along the text it is an autoregressive walk,
z_(p+1) = rho z_p + sqrt(1 - rho^2) e. A round started at difficulty z keeps at least k tokens where F(z) < S(k), with S
the product-limit of `estimate` and F the distribution of difficulty at round starts, so that the lengths of rounds have
exactly that product-limit. To tie the decisions *within* a round instead would count twice what S holds already: that
those who got far get farther.

Letters: N rounds of all requests, R requests, W most tokens a round kept, G points of a grid for z.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counts import Told
from .walk import BELOW, SETTLING, Floats, Z, density, persistence_of, quantile, steps_of

Ints = NDArray[np.integer[Any]]

_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyFit:
    """How difficulty goes along a text.

    Attributes:
        persistence: rho, 0 to 0.99.
        share: `[G]` F, the share of round starts below each point of the grid.
    """

    persistence: float
    share: Floats


# Every position has a difficulty of its own.
NO_PERSISTENCE = DifficultyFit(persistence=0.0, share=BELOW)


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
        return NO_PERSISTENCE
    rho = persistence_of(lambda rho: _alike(typical, rho, chained=found.chained)[0], found.wanted)
    return DifficultyFit(persistence=rho, share=_alike(typical, rho, chained=found.chained)[1])


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
    between = density(quantile(below)) - density(quantile(above))
    return np.where(width > 1e-9, between / np.maximum(width, 1e-9), quantile(above))


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
    share, starts = BELOW, density(Z) * (Z[1] - Z[0])
    kept, steps = _kept(share, survival), steps_of(rho)
    for _ in range(SETTLING if chained else 0):
        kept = _kept(share, survival)
        steps = steps_of(rho, kept + 1)
        for _ in range(SETTLING):
            starts = starts @ steps
        share = np.cumsum(starts) - starts / 2.0
    score = _scores(survival[None, :], np.zeros_like(kept), kept, kept < len(survival) - 1)
    return float(((starts * score) @ steps) @ score), share


def _kept(share: Floats, survival: Floats) -> NDArray[np.int64]:
    """`[G]` tokens that a round keeps at each point of the grid."""
    kept: NDArray[np.int64] = (share[:, None] < survival[1:]).sum(axis=1)
    return kept


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
        yield np.interp(block, Z, fit.share).tolist()
