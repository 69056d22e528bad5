"""Drawn workloads, request by request; the same seed gives the same ones.

A generator's text is a kind, a colon, and options by their keys: `gamma:rate=4,cv=2,requests=1000,prompt=512,
output=geometric:100`. Lengths are given, drawn from a distribution, or those of a recording's requests.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from math import log, pi, sin, sqrt
from random import Random
from typing import ClassVar

from ...base.errors import ArgumentError, check_within, known_are
from ..opening import by_form
from ..recording import Recording
from .arrival import MOST_COUNT, MOST_REQUESTS, MOST_TOKENS, PS_PER_S, Arrival, WorkloadAbout
from .format import Tally
from .workload import exact, ps_of_option

_LENGTH_NUMBER = r"(\d{1,10}(?:\.\d{1,9})?)"
_COUNT = re.compile(r"\d{1,10}", re.ASCII)
_RANGE = re.compile(r"(\d{1,10})\.\.(\d{1,10})", re.ASCII)
_GEOMETRIC = re.compile(rf"geometric:{_LENGTH_NUMBER}", re.ASCII)
_LOGNORMAL = re.compile(rf"lognormal:{_LENGTH_NUMBER}:{_LENGTH_NUMBER}", re.ASCII)
FORMS = "N, A..B, geometric:MEAN or lognormal:MEAN:CV"


@dataclass(frozen=True, slots=True)
class Length:
    """A distribution over whole numbers >= 1."""

    draw: Callable[[Random], int]
    least: int = 1  # the smallest that may be drawn
    is_given: bool = False  # whether it is the only one


def _uniform(least: int, most: int, rng: Random) -> int:
    """Both included; equal ends are a constant, without a draw."""
    return least if least == most else rng.randint(least, most)


def _geometric(mean: float, rng: Random) -> int:
    """From 1 up, each length with the probability of the one before it times 1 - 1 / mean."""
    return 1 if mean == 1 else min(MOST_COUNT, 1 + int(log(1 - rng.random()) / log(1 - 1 / mean)))


def _lognormal(mean: float, cv: float, rng: Random) -> int:
    """exp(normal) with this mean and coefficient of variation, rounded, at least 1."""
    variance = log(1 + cv**2)
    return min(MOST_COUNT, max(1, round(rng.lognormvariate(log(mean) - variance / 2, sqrt(variance)))))


def _length_of(name: str, text: str, most: int) -> Length:
    """Parse a distribution, whose largest end or mean is `most`; raises ArgumentError, with `name`.

    An unbounded distribution may draw more; code that keeps it in memory checks that.
    """
    ends = (text, text) if _COUNT.fullmatch(text) else None
    if found := _RANGE.fullmatch(text):
        ends = found[1], found[2]
    if ends is not None and 1 <= int(ends[0]) <= int(ends[1]) <= most:
        least, last = int(ends[0]), int(ends[1])
        return Length(partial(_uniform, least, last), least, least == last)
    if (found := _GEOMETRIC.fullmatch(text)) and 1 <= float(found[1]) <= most:
        return Length(partial(_geometric, float(found[1])))
    if (found := _LOGNORMAL.fullmatch(text)) and 1 <= float(found[1]) <= most and 0 < float(found[2]) <= 100:
        return Length(partial(_lognormal, float(found[1]), float(found[2])))
    raise ArgumentError(f"{name} must be {FORMS} with lengths in [1, {most}], got {text!r}")


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Lengths of a request of a recording."""

    request_id: str
    tag: str
    prompt_tokens: int  # 0 where unknown
    output_tokens: int  # the target's own, >= 1


def recorded_lengths(recording: Recording) -> tuple[RecordedLengths, ...]:
    """Of every request that has an output, in file order."""
    found = by_form(
        recording,
        tries=lambda tries: [
            (one.request_id, one.tag, len(one.prompt), len(one.trie.trunk) - 1) for one in tries.requests
        ],
        rounds=lambda rounds: [(one.request_id, one.tag, one.prompt_tokens, one.length("")) for one in rounds.requests],
    )
    return tuple(one for row in found if (one := RecordedLengths(*row)).output_tokens)


# Endless times of arrival, not descending: picoseconds since the start.
Process = Callable[[Random], Iterator[int]]


def poisson(rate: float, rng: Random) -> Iterator[int]:
    """Exponential gaps; the first arrival comes after the first gap. `rate` is the mean arrivals per second, > 0."""
    at_ps = 0
    while True:
        at_ps += round(rng.expovariate(rate) * PS_PER_S)
        yield at_ps


def _gamma(rate: float, cv: float, rng: Random) -> Iterator[int]:
    """Gaps of shape 1 / cv^2 and mean 1 / rate: cv 1 is Poisson, more comes in bursts; the first comes after a gap."""
    shape = 1 / cv**2
    scale_s, at_ps = 1 / (rate * shape), 0
    while True:
        at_ps += round(rng.gammavariate(shape, scale_s) * PS_PER_S)
        yield at_ps


def _constant(rate: float, _: Random) -> Iterator[int]:
    """The first comes at 0, and the n-th after it at n / rate, rounded."""
    exactly = exact(rate)
    gap_over, gap_under = 2 * PS_PER_S * exactly.denominator, exactly.numerator
    number = 0
    while True:
        yield (number * gap_over + gap_under) // (2 * gap_under)
        number += 1


def _diurnal(rate: float, depth: float, period_s: float, rng: Random) -> Iterator[int]:
    """Poisson at rate * (1 + depth * sin(2 pi t / period_s)), by thinning; the first crest is at a quarter of a period.

    Lewis and Shedler 1979, doi:10.1002/nav.3800260304.
    """
    crest, at_ps = 1 + depth, 0
    while True:
        at_ps += round(rng.expovariate(rate * crest) * PS_PER_S)
        phase = 2 * pi * (at_ps / PS_PER_S) / period_s
        if rng.random() * crest <= 1 + depth * sin(phase):
            yield at_ps


_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e-?\d{1,3})?", re.ASCII)


class Given:
    """The options of a generator's text, `KIND:KEY=VALUE,...`; `known` has keys by kind.

    Raises:
        ArgumentError: an unknown key, a repeated one, or one without a value; the methods raise it for a bad value, or
            one out of range.
    """

    def __init__(self, text: str, known: Mapping[str, Sequence[str]]) -> None:
        self.text = text
        self.kind, _, self.rest = text.partition(":")
        self.options: dict[str, str] = {}
        keys = known[self.kind]
        for part in self.rest.split(",") if self.rest else ():
            key, _, value = part.partition("=")
            if key not in keys:
                words = f"must have options that it takes ({known_are(key, keys)}), got {part!r}"
                raise ArgumentError(f"{self.kind} {words}")
            if key in self.options:
                raise ArgumentError(f"{self.kind} must have {key} once, got {part!r}")
            if not value or not value.isprintable():
                raise ArgumentError(f"{key} of {self.kind} must have a value, got {part!r}")
            self.options[key] = value

    def number(self, key: str, interval: str = "[1e-9, 1e9]") -> float | None:
        """A number in an interval; None where not given."""
        text = self.options.get(key)
        if text is None:
            return None
        name = f"{key} of {self.kind}"
        if not _NUMBER.fullmatch(text):
            raise ArgumentError(f"{name} must be a number in {interval}, got {text!r}")
        check_within(name, float(text), interval)
        return float(text)

    def whole(self, key: str, least: int, most: int) -> int | None:
        """A whole number; None where not given."""
        found = self.number(key, f"[{least}, {most}]")
        if found is not None and found != int(found):
            raise ArgumentError(f"{key} of {self.kind} must be a whole number, got {self.options[key]!r}")
        return None if found is None else int(found)

    def length(self, key: str, most: int = MOST_TOKENS) -> Length:
        """A distribution of lengths; must be given."""
        return _length_of(f"{key} of {self.kind}", self.options[key], most)

    def check_rate(self, rate: float | None) -> None:
        """Raise ArgumentError for a rate in addition to that of the text."""
        if "rate" in self.options and rate is not None:
            raise ArgumentError(f"`rate` must be given once: {self.text!r} has a rate of its own, got {rate:g} too")

    def check_expected(self, rate: float | None, seconds: float | None) -> None:
        """Raise ArgumentError if more arrivals are expected in `seconds` than a workload may have."""
        if rate is not None and seconds is not None and rate * seconds > MOST_REQUESTS:
            rule = f"must give at most {MOST_REQUESTS:,} arrivals in its seconds"
            raise ArgumentError(f"rate of {self.kind} {rule}, got {rate:g} x {seconds:g} s")


_LENGTHS = ("prompt", "output")
_COMMON = ("rate", "requests", "seconds", *_LENGTHS, "tag", "slo")
CLOSED = "closed"  # the kind of closed loops, without times
KINDS = {  # options by kind
    "poisson": _COMMON,
    "gamma": (*_COMMON, "cv"),
    "constant": _COMMON,
    "diurnal": (*_COMMON, "depth", "period_s"),
    CLOSED: ("concurrency", "requests", *_LENGTHS, "tag", "slo"),
}
_DAY_S = 86_400.0


def _process(given: Given, rate: float | None) -> Process:
    if given.kind == CLOSED:
        return lambda _: repeat(0)  # requests begin as others end
    found = given.number("rate") if rate is None else rate
    if found is None:
        raise ArgumentError(f"{given.kind} must have a rate, in its text or as `rate`, got none")
    if given.kind == "poisson":
        return partial(poisson, found)
    if given.kind == "constant":
        return partial(_constant, found)
    if given.kind == "gamma":
        cv = given.number("cv", "[0.01, 100]")
        if cv is None:
            raise ArgumentError("gamma must have cv, the coefficient of variation of its gaps, got none")
        return partial(_gamma, found, cv)
    depth, period_s = given.number("depth", "[0, 1]"), given.number("period_s", "[1e-3, 1e9]")
    return partial(_diurnal, found, 0.5 if depth is None else depth, _DAY_S if period_s is None else period_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A `Source` that draws."""

    text: str
    process: Process
    requests: int | None  # at most; None: all within `seconds`
    concurrency: int | None  # requests in the system at any time; None: an open loop
    seconds: float | None  # no request arrives at this time or later; None: no bound
    lengths: Mapping[str, Length]  # of "prompt" and "output", as far as the text gives them
    tag: str  # of all requests; "": those of a recording's requests, where lengths are
    slo: str
    seed: int  # times and lengths are drawn separately: another process has the same lengths
    drawn_from: tuple[RecordedLengths, ...]  # source of other lengths; empty where the text gives both
    recording: str  # its name, "" for none

    timed: ClassVar[bool] = True  # see `Source`

    @property
    def about(self) -> WorkloadAbout:
        notes = [f"drawn, seed {self.seed}"]
        if self.drawn_from:
            what = " and ".join(missing_lengths(self.text))
            notes.append(f"lengths of {what} are those of requests of {self.recording}, drawn")
        requests = self.requests if self.seconds is None else None
        return WorkloadAbout(
            name=self.text.partition(":")[0],
            files=(),
            format=self.text,
            unit_tokens=0,
            num_requests=requests,
            num_arrivals=requests,
            notes=tuple(notes),
            drawn=True,
        )

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; ids of requests are their numbers, from 1."""
        times = self.process(Random(f"{self.seed}/times"))
        lengths, draw = Random(f"{self.seed}/lengths"), self._draw()
        end_ps = None if self.seconds is None else ps_of_option(self.seconds)
        for number, at_ps in enumerate(islice(times, self.requests), start=1):
            if end_ps is not None and at_ps >= end_ps:
                return
            prompt, output, tag = draw(lengths)
            yield Arrival(str(number), at_ps, prompt, output, tag, slo=self.slo)

    def _draw(self) -> Callable[[Random], tuple[int, int, str]]:
        """A function that draws (tokens of the prompt, of the output, tag) of the next request."""
        rows, own_tag = self.drawn_from, self.tag
        prompt, output = (self.lengths.get(key) for key in _LENGTHS)
        if prompt is not None and output is not None:
            return lambda rng: (prompt.draw(rng), output.draw(rng), own_tag)

        def draw(rng: Random) -> tuple[int, int, str]:
            row = rows[rng.randrange(len(rows))]
            return (
                row.prompt_tokens if prompt is None else prompt.draw(rng),
                row.output_tokens if output is None else output.draw(rng),
                own_tag or row.tag,
            )

        return draw


def missing_lengths(text: str) -> list[str]:
    """Of "prompt" and "output", lengths that the text of a generator does not give; raises as `Given`."""
    return [key for key in _LENGTHS if key not in Given(text, KINDS).options]


def make_generator(
    text: str, rate: float | None, concurrency: int | None, seed: int, lengths_from: Recording | None
) -> Generator:
    """Read the text of a generator, `KIND:KEY=VALUE,...`; raises ArgumentError.

    `rate` is arrivals per second, and `concurrency` requests in the system, where the text has none; `lengths_from` has
    lengths that it lacks.
    """
    given = Given(text, KINDS)
    given.check_rate(rate)
    if given.kind == CLOSED:
        if rate is not None:
            raise ArgumentError(f"`rate` must be left out: {text!r} is a closed loop, got {rate:g}")
        if "requests" not in given.options:
            raise ArgumentError(f"{CLOSED} must have requests, so that it ends, got {given.rest!r}")
    elif concurrency is not None:
        rule = f"must be left out: {text!r} draws times of arrival; a closed loop is {CLOSED}:..."
        raise ArgumentError(f"`concurrency` {rule}, got {concurrency}")
    if "requests" not in given.options and "seconds" not in given.options:
        raise ArgumentError(f"{given.kind} must have requests or seconds, so that it ends, got {given.rest!r}")
    seconds = given.number("seconds")
    if "requests" not in given.options:
        given.check_expected(given.number("rate") if rate is None else rate, seconds)
    lengths = {key: given.length(key) for key in _LENGTHS if key in given.options}
    process, requests = _process(given, rate), given.whole("requests", 1, MOST_REQUESTS)
    own = given.whole("concurrency", 1, MOST_REQUESTS)
    if own is not None and concurrency is not None:
        rule = f"must be given once: {text!r} has a concurrency of its own"
        raise ArgumentError(f"`concurrency` {rule}, got {concurrency} too")
    own = concurrency if own is None else own
    if given.kind == CLOSED and own is None:
        raise ArgumentError(f"{CLOSED} must have a concurrency, in its text or as `concurrency`, got none")
    tag, rows, name = given.options.get("tag", ""), tuple[RecordedLengths, ...](), ""
    if missing := missing_lengths(text):
        if lengths_from is None:
            raise ArgumentError(f"{missing[0]} must be in {text!r} where no recording has lengths, got none")
        name = lengths_from.about.name
        rows = tuple(row for row in recorded_lengths(lengths_from) if not tag or row.tag == tag)
        if not rows:
            raise ArgumentError(f"tag must be of the requests of {name}, got {tag!r}")
        unknown = next((row for row in rows if "prompt" in missing and not row.prompt_tokens), None)
        if unknown is not None:
            raise ArgumentError(f"prompt must be in {text!r}: {name} does not say that of request {unknown.request_id}")
    return Generator(
        text=text,
        process=process,
        requests=requests,
        concurrency=own,
        seconds=seconds,
        lengths=lengths,
        tag=tag,
        slo=given.options.get("slo", ""),
        seed=seed,
        drawn_from=rows,
        recording=name,
    )
