"""What a round says of a token that another round drafts at the same position, from another start.

One number z, the difficulty of the position, decides of every round that comes to it: a round whose depth there is d
agrees where z < t_d, with thresholds t that fall as rounds get longer. So a drafter started later, which has more of
the true text before it, agrees wherever the one started earlier did (a monotone coupling, the one of most agreement:
Frechet 1951, Hoeffding 1940). Along the text z is a standard normal autoregressive walk.

Rates by depth, h_d, do not give the thresholds by themselves. Rounds that got far are rounds over easy text, so that h
may rise with depth while t falls; to divide such h by each other would take from a token what its position has already
shown. The walk is filtered instead: the density of z at round starts is that of a chain of rounds that has settled,
each started after the refusal of the one before; t_0 is where the share h_0 of it lies below; what lies below goes one
step on, t_1 is where the share h_1 of that lies below, and so on. The persistence of the walk is where neighbouring
rounds are as alike as recorded ones. Depths whose thresholds do not fall by two standard errors share one: what a few
decisions cannot tell from nothing is taken to be nothing.

Then, of a token at depth d where another round was at depth k, with f_k the density of z where rounds are at depth k,

    P(agrees | the other agreed)      = P(z < t_d | z < t_k), 1 for a round started later
    P(agrees | the other was refused) = P(z < t_d | z >= t_k), 0 for one started earlier
    P(agrees | the other got there)   = P(z < t_d), all under f_k.

Letters: G points of a grid for z, W depths of the longest recorded round, D depths with a rate, the last of which
stands for all deeper ones.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from .walk import SETTLING, STEP, Floats, Z, density, persistence_of, steps_of

_NORMAL = density(Z) / density(Z).sum()
_NOTHING = 1e-12
_ERRORS = 2.0


class Outcome(IntEnum):
    """How another round ended at a position, or that it came to it and drafted no farther.

    Numbers, since chances are looked up by them for every token that is drawn, and names are slow to hash.
    """

    agreed = 0
    refused = 1
    reached = 2


class Beside(NamedTuple):
    """What a round that started elsewhere says of a position.

    Attributes:
        outcome: of the other round there.
        depth: of the position in the other round, >= 0.
    """

    outcome: Outcome
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Difficulty of positions as rounds of one drafter come to them.

    Attributes:
        densities: `[W + 1, G]` mass of z where a round is at depth 0, 1, ...; the last is that after a whole round.
        thresholds: `[W]` t as the rates give them, chance and all.
        falling: `[W]` t made to fall where it does so by two standard errors, else level.
        steps: `[G, G]` chances of where the walk goes in one step.
    """

    densities: Floats
    thresholds: Floats
    falling: Floats
    steps: Floats

    def chance(self, depth: int, beside: Beside) -> float:
        """Probability that a token at `depth` of its round agrees, given what another round says of its position."""
        last = len(self.falling) - 1
        mass = self.densities[min(beside.depth, last + 1)]
        here, there = (_below(float(self.falling[min(place, last)])) for place in (depth, beside.depth))
        if beside.outcome is Outcome.reached:
            both, given = here, np.ones_like(here)
        elif beside.outcome is Outcome.agreed:
            both, given = np.minimum(here, there), there
        else:
            both, given = here - np.minimum(here, there), 1.0 - there
        total = float(mass @ given)
        if total < _NOTHING:  # what never happened where the rates come from
            return float(beside.outcome is Outcome.agreed)
        return float(mass @ both) / total

    def alike(self, score: Floats) -> float:
        """Mean product of the scores of neighbouring rounds.

        Args:
            score: `[W + 1]` of a round that kept 0, 1, ... W tokens.
        """
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
    """The walk of persistence `rho` whose rounds agree at the rates `hazards`.

    Args:
        hazards: `[D]` probability of agreement by depth, of rounds that got there.
        decisions: `[D]` that these were counted on, > 0.
        window: W, >= 1.
        rho: 0 to 0.99.
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
    """The rho whose neighbouring rounds are as alike as recorded ones.

    Args:
        hazards: `[D]` of a typical request.
        decisions: `[D]` that these were counted on, > 0.
        score: `[W + 1]` of a round that kept 0, 1, ... W tokens.
        wanted: mean product of the scores of neighbouring rounds.
    """
    return persistence_of(lambda rho: filter_positions(hazards, decisions, len(score) - 1, rho).alike(score), wanted)


def falling(values: Floats, variances: Floats) -> Floats:
    """`values` in levels that fall by two standard errors or more: the two neighbours that do so least become one.

    Args:
        values: `[W]`.
        variances: `[W]` of what is not known of each, > 0.
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
    # A rate of 0 or 1 is not known for certain either: half a decision each way (Jeffreys).
    share = (rates * decisions + 0.5) / (decisions + 1.0)
    variances: Floats = share * (1.0 - share) / decisions / density**2
    return variances


def _one_round(starts: Floats, rates: list[float], steps: Floats) -> tuple[list[Floats], list[float]]:
    """Mass at each depth and after the last one, and the threshold at each depth."""
    densities, thresholds = [starts], []
    for rate in rates:
        thresholds.append(_threshold(densities[-1], rate))
        densities.append((densities[-1] * _below(thresholds[-1])) @ steps)
    return densities, thresholds


def _threshold(mass: Floats, share: float) -> float:
    """Where so great a share of the mass lies below."""
    ends = np.cumsum(mass)
    wanted = share * float(ends[-1])
    cell = min(int(np.searchsorted(ends, wanted)), len(Z) - 1)
    part = (wanted - float(ends[cell] - mass[cell])) / max(float(mass[cell]), 1e-300)
    return float(Z[cell]) + STEP * (min(max(part, 0.0), 1.0) - 0.5)


def _below(threshold: float) -> Floats:
    """`[G]` how much of the cell of each point lies below."""
    share: Floats = np.clip((threshold - Z) / STEP + 0.5, 0.0, 1.0)
    return share
