"""Lengths of prompts and outputs: given, drawn from a distribution, or those of a recording's requests."""

import re
from dataclasses import dataclass
from math import log, sqrt
from random import Random
from typing import Protocol

from ....arguments import ArgumentError
from ...forms import by_form
from ...recording import Recording
from ..options import MOST_COUNT, MOST_TOKENS

_NUMBER = r"(\d{1,10}(?:\.\d{1,9})?)"
_COUNT = re.compile(r"\d{1,10}", re.ASCII)
_RANGE = re.compile(r"(\d{1,10})\.\.(\d{1,10})", re.ASCII)
_GEOMETRIC = re.compile(rf"geometric:{_NUMBER}", re.ASCII)
_LOGNORMAL = re.compile(rf"lognormal:{_NUMBER}:{_NUMBER}", re.ASCII)
FORMS = "N, A..B, geometric:MEAN or lognormal:MEAN:CV"


class Length(Protocol):
    """A distribution over whole numbers >= 1."""

    @property
    def least(self) -> int:
        """The smallest that may be drawn."""
        ...

    @property
    def is_given(self) -> bool:
        """Whether no other one may be drawn."""
        ...

    def draw(self, rng: Random) -> int:
        """One length."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any of `least` to `most`, both in; equal ends are a given number, for which nothing is drawn."""

    least: int
    most: int

    @property
    def is_given(self) -> bool:
        """See `Length`."""
        return self.least == self.most

    def draw(self, rng: Random) -> int:
        """See `Length`."""
        return self.least if self.least == self.most else rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Geometric:
    """1 and up with this mean, each length as likely as the one before it times 1 - 1 / mean."""

    mean: float
    least = 1
    is_given = False

    def draw(self, rng: Random) -> int:
        """See `Length`."""
        if self.mean == 1:
            return 1
        return min(MOST_COUNT, 1 + int(log(1 - rng.random()) / log(1 - 1 / self.mean)))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp(normal) with this mean and coefficient of variation, rounded, at least 1."""

    mean: float
    cv: float
    least = 1
    is_given = False

    def draw(self, rng: Random) -> int:
        """See `Length`."""
        variance = log(1 + self.cv**2)
        return min(MOST_COUNT, max(1, round(rng.lognormvariate(log(self.mean) - variance / 2, sqrt(variance)))))


def length_of(name: str, text: str, most: int = MOST_TOKENS) -> Length:
    """The distribution that a text says, of which `most` is the largest end or mean; raises ArgumentError, with `name`.

    What a distribution without end draws beyond that is for whoever keeps it in memory to refuse.
    """
    ends = (text, text) if _COUNT.fullmatch(text) else None
    if found := _RANGE.fullmatch(text):
        ends = found[1], found[2]
    if ends is not None and 1 <= int(ends[0]) <= int(ends[1]) <= most:
        return Uniform(int(ends[0]), int(ends[1]))
    if (found := _GEOMETRIC.fullmatch(text)) and 1 <= float(found[1]) <= most:
        return Geometric(float(found[1]))
    if (found := _LOGNORMAL.fullmatch(text)) and 1 <= float(found[1]) <= most and 0 < float(found[2]) <= 100:
        return LogNormal(float(found[1]), float(found[2]))
    raise ArgumentError(f"{name} must be {FORMS} with lengths in [1, {most}], got {text!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLengths:
    """What a request of a recording is drawn for.

    Attributes:
        request_id: of the recording.
        tag: of the request.
        prompt_tokens: 0 where no log says.
        output_tokens: the target's own, >= 1.
    """

    request_id: str
    tag: str
    prompt_tokens: int
    output_tokens: int


def recorded_lengths(recording: Recording) -> tuple[RecordedLengths, ...]:
    """Of every request that has an output, in file order."""
    found = by_form(
        recording,
        tries=lambda tries: [
            (one.request_id, one.tag, len(one.prompt), len(one.trie.trunk) - 1) for one in tries.requests
        ],
        rounds=lambda rounds: [(one.request_id, one.tag, one.prompt_tokens, one.length("")) for one in rounds.requests],
    )
    return tuple(
        RecordedLengths(request_id=name, tag=tag, prompt_tokens=prompt, output_tokens=output)
        for name, tag, prompt, output in found
        if output
    )
