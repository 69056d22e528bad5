"""Processes of arrival: the times of requests that nobody recorded, one after another, in whole picoseconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import pi, sin
from random import Random
from typing import Protocol

from ..changes import exact
from ..exact_seconds import PS_PER_S


class Process(Protocol):
    """Times of arrival that never go back."""

    def times(self, rng: Random) -> Iterator[int]:
        """Picoseconds since the start, without end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Exponential gaps.

    Attributes:
        rate: mean arrivals per second, > 0.
    """

    rate: float

    def times(self, rng: Random) -> Iterator[int]:
        """See `Process`; the first comes after the first gap."""
        at_ps = 0
        while True:
            at_ps += round(rng.expovariate(self.rate) * PS_PER_S)
            yield at_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gamma gaps: shape 1 / cv^2, mean 1 / rate.

    Attributes:
        rate: mean arrivals per second, > 0.
        cv: coefficient of variation of the gaps, > 0: 1 is Poisson, more comes in bursts.
    """

    rate: float
    cv: float

    def times(self, rng: Random) -> Iterator[int]:
        """See `Process`; the first comes after the first gap."""
        shape = 1 / self.cv**2
        scale_s, at_ps = 1 / (self.rate * shape), 0
        while True:
            at_ps += round(rng.gammavariate(shape, scale_s) * PS_PER_S)
            yield at_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Equal gaps.

    Attributes:
        rate: arrivals per second, > 0.
    """

    rate: float

    def times(self, rng: Random) -> Iterator[int]:
        """See `Process`; the first comes at 0, and the n-th after it at n / rate, rounded. Nothing is drawn."""
        rate = exact(self.rate)
        gap_over, gap_under = 2 * PS_PER_S * rate.denominator, rate.numerator
        number = 0
        while True:
            yield (number * gap_over + gap_under) // (2 * gap_under)
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A Poisson process whose rate at t seconds is rate * (1 + depth * sin(2 pi t / period_s)), by thinning.

    Attributes:
        rate: mean arrivals per second over a period, > 0.
        depth: share of the rate by which it swings, 0 to 1.
        period_s: seconds from one crest to the next, > 0; the first crest is at a quarter of it.
    """

    rate: float
    depth: float
    period_s: float

    def times(self, rng: Random) -> Iterator[int]:
        """See `Process` (Lewis and Shedler 1979, doi:10.1002/nav.3800260304)."""
        crest, at_ps = 1 + self.depth, 0
        while True:
            at_ps += round(rng.expovariate(self.rate * crest) * PS_PER_S)
            phase = 2 * pi * (at_ps / PS_PER_S) / self.period_s
            if rng.random() * crest <= 1 + self.depth * sin(phase):
                yield at_ps
