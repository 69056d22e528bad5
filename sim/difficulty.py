"""Correlation of rounds near each other: the difficulty of positions along a text.

The difficulty z of a position is a standard normal number. Along the text it is an autoregressive walk,
z_(p+1) = rho z_p + sqrt(1 - rho^2) e; rho is its persistence. A round started at difficulty z keeps at least k tokens
where F(z) < S(k), with S the product-limit of `hazard` and F the distribution of difficulty at round starts, so that
the lengths of rounds have exactly that product-limit. Correlating the decisions *within* a round instead would count
twice what S already contains: that long rounds get longer.

**Rounds from another start.** z decides for every round that reaches a position: a round whose depth there is d agrees
where z < t_d, with thresholds t that fall as rounds get longer. So a drafter started later, which has more of the true
text before it, agrees where the one started earlier did (a monotone coupling, the one of most agreement: Frechet
1951, Hoeffding 1940).

Rates by depth, h_d, do not give the thresholds by themselves. Long rounds are over easy text, so that h may rise with
depth while t falls; dividing such h by each other would ignore what a token's position has already shown. The walk is
filtered instead: the density of z at round starts is that of a chain of rounds in equilibrium, each started after the
rejection of the one before; t_0 is where the share h_0 of it lies below; this part moves one step, t_1 is where the
share h_1 of it lies below, and so on. The persistence of the walk is where neighbouring rounds are as correlated as
recorded ones. Depths whose thresholds do not fall by two standard errors share one: a difference that a few decisions
do not show is taken to be none.

Then, of a token at depth d where another round was at depth k, with f_k the density of z where rounds are at depth k,

    P(agrees | the other agreed)       = P(z < t_d | z < t_k), 1 for a round started later
    P(agrees | the other was rejected) = P(z < t_d | z >= t_k), 0 for one started earlier
    P(agrees | the other reached it)   = P(z < t_d), all under f_k.

Letters: N rounds of all requests, R requests, D depths, the last of which represents all deeper ones, W most tokens a
round kept, G points of a grid for z.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from math import erfc, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..traces.rounds.rounds import DrafterInfo, RoundsRequest

Floats = NDArray[np.float64]

SETTLING = 12  # rounds after which a chain of them counts as in equilibrium
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
    """The standard normal quantile, within the grid."""
    return np.interp(probability, BELOW, Z)


def steps_of(rho: float, tokens: NDArray[np.integer[Any]] | int = 1) -> Floats:
    """`[G, G]` chances of where the walk is `tokens` (of each point, or the same of all) after each point."""
    kept = np.broadcast_to(rho**tokens, len(Z))[:, None]
    chances = density((Z - kept * Z[:, None]) / np.sqrt(1.0 - kept**2))
    steps: Floats = chances / chances.sum(axis=1, keepdims=True)
    return steps


def persistence_of(alike: Callable[[float], float], wanted: float) -> float:
    """The rho, 0 to 0.99, at which `alike`, which grows with rho, is `wanted`."""
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if alike(middle) < wanted else (low, middle)
    return low


Ints = NDArray[np.int32]

MIN_DECISIONS = 500
MAX_DEPTHS = 64
MOST_FITTED = 4000  # requests used in a fit


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRounds:
    """Decisions of one drafter's rounds, request by request in order."""

    request: Ints  # `[N]` index of each round's request
    start: Ints  # `[N]` output position, ascending in a request
    accepted: Ints  # `[N]` tokens that agreed
    refused: NDArray[np.bool_]  # `[N]` whether a rejection was seen after them

    def thinned(self, most: int) -> "ToldRounds":
        """The rounds of at most `most` requests, evenly spaced among those with rounds."""
        present = np.flatnonzero(np.bincount(self.request))
        chosen = np.isin(np.arange(present[-1] + 1), present[:: -(-len(present) // most)])[self.request]
        return ToldRounds(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def num_decisions(self) -> int:
        """Number of agreements and rejections."""
        return int(self.accepted.sum(dtype=np.int64)) + int(self.refused.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthCounts:
    """Decisions by depth."""

    agreed: Floats  # `[R, D]` rounds that kept the token at that depth
    refused: Floats  # `[R, D]` rounds that rejected the token at that depth


def told_by(requests: Sequence[RoundsRequest], drafter: DrafterInfo) -> ToldRounds:
    """Decisions of a drafter's rounds, without those that the end of the text may have ended.

    A round whose whole draft would not have fitted into the text is left out, however it ended: leaving out only those
    that reached the end would count short rounds more often than long ones. Where no round had room, all are used, and
    one that reached the last token counts only for agreements.
    """
    found = [(index, rounds) for index, one in enumerate(requests) if (rounds := one.rounds.get(drafter.name))]
    if not found:
        none = np.empty(0, np.int32)
        return ToldRounds(request=none, start=none, accepted=none, refused=none.astype(np.bool_))
    counts = [len(rounds.start) for _, rounds in found]
    start = np.concatenate([rounds.start for _, rounds in found])
    accepted = np.concatenate([rounds.accepted for _, rounds in found])
    drafted = np.concatenate([rounds.drafted for _, rounds in found])
    refused = ~np.concatenate([rounds.censored(drafter.window) for _, rounds in found])
    lengths = [requests[index].length(drafter.name) for index, _ in found]
    room = np.maximum(np.repeat(np.array(lengths, np.int32), counts) - 1 - start, 0)
    window = drafter.window or int(accepted.max(initial=0))
    judged = drafted != 0  # a plain step shows nothing about acceptance
    fits = judged & (room >= np.where(drafted < 0, window, drafted))
    if not fits.any():
        fits = judged
        refused &= accepted < room
        accepted = np.minimum(accepted, room)
    request = np.repeat(np.array([index for index, _ in found], np.int32), counts)
    return ToldRounds(request=request[fits], start=start[fits], accepted=accepted[fits], refused=refused[fits])


def count_depths(told: ToldRounds, num_requests: int) -> DepthCounts:
    """Agreements and rejections by request and depth.

    From the deepest depth on at which, with all deeper ones, at least 500 decisions were seen (a rate is then known to
    about 0.02), all depths share one rate, seen or not; there are never more than 64 rates.
    """
    decisions = told.accepted + told.refused
    deep = range(min(int(decisions.max(initial=0)), MAX_DEPTHS) - 1, 0, -1)
    seen = (int(np.maximum(decisions - depth, 0).sum(dtype=np.int64)) for depth in deep)
    last = next((depth for depth, count in zip(deep, seen, strict=True) if count >= MIN_DECISIONS), 0)
    shape = (num_requests, last + 2)
    kept = _histogram(told.request, np.minimum(told.accepted, last + 1), shape)
    lost = _histogram(told.request[told.refused], np.minimum(told.accepted[told.refused], last), shape)
    agreed = np.cumsum(kept[:, ::-1], axis=1)[:, ::-1][:, 1:]
    agreed[:, last] = np.bincount(told.request, np.maximum(told.accepted - last, 0), minlength=num_requests)
    return DepthCounts(agreed=agreed, refused=lost[:, :-1])


def _histogram(row: Ints, column: Ints, shape: tuple[int, int]) -> Floats:
    counted = np.bincount(row.astype(np.int64) * shape[1] + column, minlength=shape[0] * shape[1])
    return counted.reshape(shape).astype(np.float64)


AnyInts = NDArray[np.integer[Any]]

_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyFit:
    """The walk of difficulty along a text."""

    persistence: float  # rho, 0 to 0.99
    share: Floats  # `[G]` F, the share of round starts below each point of the grid


# With independent difficulty at every position.
NO_PERSISTENCE = DifficultyFit(persistence=0.0, share=BELOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Correlation of neighbouring rounds of a recording."""

    wanted: float  # mean product of the scores of neighbouring rounds, less that of any two rounds of their request
    chained: bool  # whether rounds are consecutive; else they start at every position


def neighbours(told: ToldRounds, survival: Floats) -> Neighbours | None:
    """The correlation in the recording; None if no two rounds are neighbours.

    A round gives z up to an interval; its score is the mean of a standard normal there. The correlation of any two
    rounds of a request is subtracted: it is an error of the fit of the request. `survival` is `[R, W + 1]`: by request,
    the share of rounds that keep at least 0, 1, ... W tokens.
    """
    same = told.request[1:] == told.request[:-1]
    gap = told.start[1:] - told.start[:-1]
    chained = not np.any(same & (gap <= told.accepted[:-1]))
    first = np.flatnonzero(same & (gap == (told.accepted[:-1] + 1 if chained else 1)))
    if not len(first):
        return None
    score = _scores(survival, told.request, told.accepted, told.refused)
    # Of any two rounds of a request, near or far, the mean product of their scores.
    count = np.bincount(told.request)
    total, squares = np.bincount(told.request, score), np.bincount(told.request, score**2)
    common = ((total**2 - squares) / np.maximum(count * (count - 1), 1))[told.request]
    wanted = float((score[first] * score[first + 1] - common[first]).mean())
    return Neighbours(wanted=wanted, chained=chained)


def fit_difficulty(found: Neighbours | None, typical: Floats) -> DifficultyFit:
    """The walk whose neighbouring rounds are as correlated as recorded ones, `found`.

    `typical` is `[W + 1]`: the share of rounds of a typical request that keep at least 0, 1, ... W tokens.
    """
    if found is None:
        return NO_PERSISTENCE
    rho = persistence_of(lambda rho: _alike(typical, rho, chained=found.chained)[0], found.wanted)
    return DifficultyFit(persistence=rho, share=_alike(typical, rho, chained=found.chained)[1])


def scores_by_kept(typical: Floats) -> Floats:
    """`[W + 1]` mean of z, given the tokens kept by a round of a typical request."""
    kept = np.arange(len(typical))
    return _scores(typical[None, :], np.zeros_like(kept), kept, kept < len(typical) - 1)


def _scores(survival: Floats, request: AnyInts, accepted: AnyInts, refused: NDArray[np.bool_]) -> Floats:
    """`[N]` mean of z, given how each round ended."""
    most = survival.shape[1] - 1
    above = survival[request, np.minimum(accepted, most)]
    below = np.where(refused, survival[request, np.minimum(accepted + 1, most)], 0.0)
    width = above - below
    between = density(quantile(below)) - density(quantile(above))
    return np.where(width > 1e-9, between / np.maximum(width, 1e-9), quantile(above))


def _alike(survival: Floats, rho: float, *, chained: bool) -> tuple[float, Floats]:
    """(mean product of the scores of neighbouring rounds, F) under the walk.

    Consecutive rounds jump over easy text and stop in difficult text, so that their starts are more difficult than
    positions are. F belongs to the chain of round starts, z' = rho^k z + sqrt(1 - rho^(2k)) e with k the tokens of a
    round that starts at z, in equilibrium. Where rounds were recorded at every position, each is the neighbour of the
    next and F is the normal distribution.
    """
    share, starts = BELOW, density(Z) * (Z[1] - Z[0])
    kept = _kept(share, survival)
    steps = steps_of(rho, kept + 1 if chained else 1)
    for _ in range(SETTLING if chained else 0):
        before, kept = kept, _kept(share, survival)
        if not np.array_equal(kept, before):  # soon it is the same
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
    """F(z) of consecutive output positions, in blocks, without end."""
    rho = fit.persistence
    fresh = sqrt(1.0 - rho * rho)
    z = float(generator.standard_normal())
    while True:
        block: list[float] = []
        for step in generator.standard_normal(_BLOCK).tolist():
            block.append(z)
            z = rho * z + fresh * step
        yield np.interp(block, Z, fit.share).tolist()


_NORMAL = density(Z) / density(Z).sum()
_NOTHING = 1e-12
_ERRORS = 2.0


class BesideOutcome(IntEnum):
    """How another round ended at a position, or that it reached it and drafted no farther; integers, fast to hash."""

    agreed = 0
    refused = 1
    reached = 2


class Beside(NamedTuple):
    """The outcome at a position of a round that started elsewhere."""

    outcome: BesideOutcome  # of the other round there
    depth: int  # of the position in the other round, >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Difficulty of positions as rounds of one drafter reach them."""

    # `[W + 1, G]` mass of z where a round is at depth 0, 1, ...; the last is that after a whole round
    densities: Floats
    thresholds: Floats  # `[W]` t from the rates, with their noise
    falling: Floats  # `[W]` t that falls where it does so by two standard errors, else level
    steps: Floats  # `[G, G]` chances of where the walk goes in one step

    def chance(self, depth: int, beside: Beside) -> float:
        """Probability that a token at `depth` of its round agrees, given another round's outcome at its position."""
        last = len(self.falling) - 1
        mass = self.densities[min(beside.depth, last + 1)]
        here, there = (_below(float(self.falling[min(place, last)])) for place in (depth, beside.depth))
        if beside.outcome is BesideOutcome.reached:
            both, given = here, np.ones_like(here)
        elif beside.outcome is BesideOutcome.agreed:
            both, given = np.minimum(here, there), there
        else:
            both, given = here - np.minimum(here, there), 1.0 - there
        total = float(mass @ given)
        if total < _NOTHING:  # never seen in the data of the rates
            return float(beside.outcome is BesideOutcome.agreed)
        return float(mass @ both) / total

    def alike(self, score: Floats) -> float:
        """Mean product of neighbouring rounds' scores: `[W + 1]`, of a round that kept 0, 1, ... W tokens."""
        agreeing = [_below(threshold) for threshold in self.thresholds.tolist()]
        ended = [mass * (1.0 - low) for mass, low in zip(self.densities, agreeing, strict=False)]
        starts = np.array([*ended, self.densities[-1]]) @ self.steps
        mean, mass = np.zeros(len(starts)), starts
        for depth, low in enumerate(agreeing):
            mean += (mass @ (1.0 - low)) * score[depth]
            mass = (mass * low) @ self.steps
        mean += mass.sum(axis=1) * score[-1]
        return float(mean @ score)


def filter_positions(hazards: list[float], decisions: Floats, window: int, rho: float) -> Positions:
    """The walk of persistence `rho`, 0 to 0.99, whose rounds agree at the rates `hazards`; `window` is W >= 1.

    `hazards` is `[D]` probability of agreement by depth, of rounds that reached it; `decisions` is `[D]` their numbers
    of decisions, > 0.
    """
    steps = steps_of(rho)
    rates = [hazards[min(depth, len(hazards) - 1)] for depth in range(window)]
    starts = _NORMAL
    for _ in range(SETTLING):
        densities, thresholds = _one_round(starts, rates, steps)
        ended = sum(
            (mass * (1.0 - _below(threshold)) for mass, threshold in zip(densities, thresholds, strict=False)),
            # After a whole round the verifier adds a token of its own, so that the next one starts a step later.
            densities[-1],
        )
        starts = ended @ steps
        starts = starts / starts.sum()
    stacked, found = np.array(densities), np.array(thresholds)
    counted = decisions[np.minimum(np.arange(window), len(decisions) - 1)]
    counted[len(decisions) - 1 :] /= max(window - len(decisions) + 1, 1)  # depths that share a rate share its decisions
    level = falling(found, _variances(stacked[:-1], np.array(rates), counted, found))
    return Positions(densities=stacked, thresholds=found, falling=level, steps=steps)


def fit_persistence(hazards: list[float], decisions: Floats, score: Floats, wanted: float) -> float:
    """The rho whose neighbouring rounds are as correlated as `wanted`, the mean product of recorded scores.

    `hazards` is `[D]` of a typical request, `decisions` `[D]` their numbers of decisions; `score` is `[W + 1]`, of a
    round that kept 0, 1, ... W tokens.
    """
    return persistence_of(lambda rho: filter_positions(hazards, decisions, len(score) - 1, rho).alike(score), wanted)


def falling(values: Floats, variances: Floats) -> Floats:
    """`values` in levels that fall by two standard errors or more: neighbours with the least fall are merged.

    `variances` is `[W]` of the errors of the `[W]` values, > 0.
    """
    means, known, sizes = values.tolist(), (1.0 / variances).tolist(), [1] * len(values)
    while len(means) > 1:
        falls = [
            (means[place] - means[place + 1]) / np.sqrt(1.0 / known[place] + 1.0 / known[place + 1])
            for place in range(len(means) - 1)
        ]
        least = int(np.argmin(falls))
        if falls[least] >= _ERRORS:
            break
        whole = known[least] + known[least + 1]
        means[least] = (means[least] * known[least] + means[least + 1] * known[least + 1]) / whole
        known[least], sizes[least] = whole, sizes[least] + sizes[least + 1]
        del means[least + 1], known[least + 1], sizes[least + 1]
    return np.repeat(means, sizes)


def _variances(densities: Floats, rates: Floats, decisions: Floats, thresholds: Floats) -> Floats:
    """`[W]` of thresholds, from the binomial ones of the rates: dt = dh / density of z at t."""
    cells = np.clip(np.rint((thresholds - Z[0]) / STEP).astype(int), 0, len(Z) - 1)
    mass = np.maximum(densities.sum(axis=1), _NOTHING)
    density = np.maximum(densities[np.arange(len(cells)), cells] / mass / STEP, 1e-3)
    # A rate of 0 or 1 is not certain either: half a decision each way (Jeffreys).
    share = (rates * decisions + 0.5) / (decisions + 1.0)
    variances: Floats = share * (1.0 - share) / decisions / density**2
    return variances


def _one_round(starts: Floats, rates: list[float], steps: Floats) -> tuple[list[Floats], list[float]]:
    """Mass at each depth and after the last one, and thresholds by depth."""
    densities, thresholds, mass = [starts], [], starts
    for rate in rates:
        ends = np.cumsum(mass)
        wanted = rate * float(ends[-1])
        cell = min(int(np.searchsorted(ends, wanted)), len(Z) - 1)
        part = (wanted - float(ends[cell] - mass[cell])) / max(float(mass[cell]), 1e-300)
        thresholds.append(float(Z[cell]) + STEP * (min(max(part, 0.0), 1.0) - 0.5))
        mass = (mass * _below(thresholds[-1])) @ steps
        densities.append(mass)
    return densities, thresholds


def _below(threshold: float) -> Floats:
    """`[G]` the share of each point's cell below the threshold."""
    share: Floats = np.clip((threshold - Z) / STEP + 0.5, 0.0, 1.0)
    return share
