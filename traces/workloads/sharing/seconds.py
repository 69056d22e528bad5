"""How long tools and users take: given, or drawn."""

import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from ....arguments import ArgumentError
from ..changes import ps_of_option
from ..exact_seconds import PS_PER_S

_NUMBER = r"(\d{1,7}(?:\.\d{1,12})?)"
_GIVEN = re.compile(_NUMBER, re.ASCII)
_EXPONENTIAL = re.compile(rf"exponential:{_NUMBER}", re.ASCII)
_MOST_S = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """A distribution over waits.

    Attributes:
        mean_s: >= 0.
        is_drawn: exponentially; else each is the mean, and nothing is drawn.
    """

    mean_s: float
    is_drawn: bool

    def draw_ps(self, rng: Random) -> int:
        """One wait in picoseconds."""
        if self.is_drawn:
            return round(rng.expovariate(1 / self.mean_s) * PS_PER_S) if self.mean_s else 0
        return _given_ps(self.mean_s)


@lru_cache(maxsize=64)
def _given_ps(seconds: float) -> int:
    """Of seconds that all requests wait; exact, which takes a while."""
    return ps_of_option(seconds)


def seconds_of(name: str, text: str) -> Seconds:
    """The distribution that a text says; raises ArgumentError, which names `name`."""
    given, drawn = _GIVEN.fullmatch(text), _EXPONENTIAL.fullmatch(text)
    found = given or drawn
    if found is None or float(found[1]) > _MOST_S:
        raise ArgumentError(f"{name} must be SECONDS or exponential:MEAN in [0, {_MOST_S}], got {text!r}")
    return Seconds(mean_s=float(found[1]), is_drawn=drawn is not None)
