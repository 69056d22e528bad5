"""Lengths of prompts and outputs: given, drawn from a distribution, or those of a recording's requests.

Processes of arrival: the times of requests that nobody recorded, one after another, in whole picoseconds.

The text of a generator: a kind, a colon, and options by their keys.

The text of a generator, `gamma:rate=4,cv=2,requests=1000,prompt=512,output=geometric:100`, read and checked.

Workloads that are drawn, request by request; the same seed gives the same ones.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log, pi, sin, sqrt
from random import Random
from typing import Protocol

from ...base.errors import ArgumentError, check_within, known_are
from ..forms import by_form
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


_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e-?\d{1,3})?", re.ASCII)


def pairs_of(kind: str, rest: str, known: Sequence[str]) -> dict[str, str]:
    """Options by key; raises ArgumentError for an unknown one, one that is there twice, or has no value."""
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key not in known:
            raise ArgumentError(f"{kind} must have options that it takes ({known_are(key, known)}), got {part!r}")
        if key in given:
            raise ArgumentError(f"{kind} must have {key} once, got {part!r}")
        if not value or not value.isprintable():
            raise ArgumentError(f"{key} of {kind} must have a value, got {part!r}")
        given[key] = value
    return given


def number_of(kind: str, given: Mapping[str, str], key: str, interval: str) -> float | None:
    """A number in an interval; None where it is not given. Raises ArgumentError."""
    text = given.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ArgumentError(f"{key} of {kind} must be a number in {interval}, got {text!r}")
    check_within(f"{key} of {kind}", float(text), interval)
    return float(text)


def check_expected(kind: str, rate: float | None, seconds: float | None) -> None:
    """Raise ArgumentError for more arrivals in so many seconds than a workload may have."""
    if rate is not None and seconds is not None and rate * seconds > MOST_REQUESTS:
        rule = f"must give at most {MOST_REQUESTS:,} arrivals in its seconds"
        raise ArgumentError(f"rate of {kind} {rule}, got {rate:g} x {seconds:g} s")


def whole_of(kind: str, given: Mapping[str, str], key: str, least: int, most: int) -> int | None:
    """A whole number; None where it is not given. Raises ArgumentError."""
    found = number_of(kind, given, key, f"[{least}, {most}]")
    if found is not None and found != int(found):
        raise ArgumentError(f"{key} of {kind} must be a whole number, got {given[key]!r}")
    return None if found is None else int(found)


KINDS = ("poisson", "gamma", "constant", "diurnal")
_OWN = {"gamma": ("cv",), "diurnal": ("depth", "period_s")}
_COMMON = ("rate", "requests", "seconds", "prompt", "output", "tag", "slo")
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """What is to be drawn.

    Attributes:
        text: it was read from.
        process: of arrival.
        requests: most of them; None: as many as `seconds` holds.
        seconds: no request arrives at this time or later; None: there is no such time.
        prompt: lengths of prompts; None: of a recording's requests.
        output: lengths of outputs; None: of a recording's requests.
        tag: of all requests; "": those of a recording's requests, where lengths are.
        slo: of all requests.
    """

    text: str
    process: Process
    requests: int | None
    seconds: float | None
    prompt: Length | None
    output: Length | None
    tag: str
    slo: str


def is_spec(text: str) -> bool:
    """Whether a text means a generator."""
    return text.partition(":")[0] in KINDS


def parse_spec(text: str, rate: float | None = None) -> GeneratorSpec:
    """Read the text of a generator.

    Args:
        text: `KIND:KEY=VALUE,...`.
        rate: arrivals per second, where the text names none.

    Raises:
        ArgumentError: an unknown key, one given twice or missing, or a value out of its range.
    """
    kind, _, rest = text.partition(":")
    given = pairs_of(kind, rest, (*_COMMON, *_OWN.get(kind, ())))
    if "rate" in given and rate is not None:
        raise ArgumentError(f"`rate` must be given once: {text!r} has a rate of its own, got {rate:g} too")
    if "requests" not in given and "seconds" not in given:
        raise ArgumentError(f"{kind} must have requests or seconds, so that it ends, got {rest!r}")
    seconds = number_of(kind, given, "seconds", "[1e-9, 1e9]")
    if "requests" not in given:
        asked = number_of(kind, given, "rate", "[1e-9, 1e9]") if rate is None else rate
        check_expected(kind, asked, seconds)
    lengths = {key: length_of(f"{key} of {kind}", given[key]) for key in ("prompt", "output") if key in given}
    return GeneratorSpec(
        text=text,
        process=_process(kind, given, rate),
        requests=whole_of(kind, given, "requests", 1, MOST_REQUESTS),
        seconds=seconds,
        prompt=lengths.get("prompt"),
        output=lengths.get("output"),
        tag=given.get("tag", ""),
        slo=given.get("slo", ""),
    )


def _process(kind: str, given: Mapping[str, str], rate: float | None) -> Process:
    found = number_of(kind, given, "rate", "[1e-9, 1e9]") if rate is None else rate
    if found is None:
        raise ArgumentError(f"{kind} must have a rate, in its text or as `rate`, got none")
    if kind == "poisson":
        return Poisson(rate=found)
    if kind == "constant":
        return Constant(rate=found)
    if kind == "gamma":
        cv = number_of(kind, given, "cv", "[0.01, 100]")
        if cv is None:
            raise ArgumentError("gamma must have cv, the coefficient of variation of its gaps, got none")
        return Gamma(rate=found, cv=cv)
    depth = number_of(kind, given, "depth", "[0, 1]")
    period_s = number_of(kind, given, "period_s", "[1e-3, 1e9]")
    return Diurnal(rate=found, depth=0.5 if depth is None else depth, period_s=_DAY_S if period_s is None else period_s)


Draw = Callable[[Random], tuple[int, int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A `Source` that draws.

    Attributes:
        spec: what is drawn.
        seed: >= 0. Times and lengths are drawn apart: another process meets the same lengths.
        drawn_from: requests of the recording that lengths are drawn from; empty where the spec gives both.
        recording: its name, "" for none.
    """

    spec: GeneratorSpec
    seed: int
    drawn_from: tuple[RecordedLengths, ...]
    recording: str

    @property
    def about(self) -> WorkloadAbout:
        """See `Source`."""
        notes = [f"drawn, seed {self.seed}"]
        if self.drawn_from:
            what = [name for name in ("prompt", "output") if getattr(self.spec, name) is None]
            notes.append(f"lengths of {' and '.join(what)} are those of requests of {self.recording}, drawn")
        requests = self.spec.requests if self.spec.seconds is None else None
        return WorkloadAbout(
            name=self.spec.text.partition(":")[0],
            files=(),
            format=self.spec.text,
            unit_tokens=0,
            num_requests=requests,
            num_arrivals=requests,
            notes=tuple(notes),
            drawn=True,
        )

    @property
    def timed(self) -> bool:
        """See `Source`."""
        return True

    def arrivals(self, tally: Tally) -> Iterator[Arrival]:
        """See `Source`; requests are called by their number, from 1."""
        times = self.spec.process.times(Random(f"{self.seed}/times"))
        lengths, draw = Random(f"{self.seed}/lengths"), self._draw()
        end_ps = None if self.spec.seconds is None else ps_of_option(self.spec.seconds)
        for number, at_ps in enumerate(islice(times, self.spec.requests), start=1):
            if end_ps is not None and at_ps >= end_ps:
                return
            prompt, output, tag = draw(lengths)
            yield Arrival(str(number), at_ps, prompt, output, tag, slo=self.spec.slo)

    def _draw(self) -> Draw:
        """(tokens of the prompt, of the output, tag) of one request after another."""
        spec, rows = self.spec, self.drawn_from
        prompt, output = spec.prompt, spec.output
        if not rows:
            assert prompt is not None
            assert output is not None
            return lambda rng: (prompt.draw(rng), output.draw(rng), spec.tag)

        def draw(rng: Random) -> tuple[int, int, str]:
            row = rows[rng.randrange(len(rows))]
            return (
                row.prompt_tokens if prompt is None else prompt.draw(rng),
                row.output_tokens if output is None else output.draw(rng),
                spec.tag or row.tag,
            )

        return draw


def make_generator(spec: GeneratorSpec, seed: int, lengths_from: Recording | None) -> Generator:
    """A generator, with the recording that its lengths are drawn from.

    Raises:
        ArgumentError: lengths are neither given nor in a recording, or the recording's log does not know those of
            prompts, or has no request of the tag.
    """
    if spec.prompt is not None and spec.output is not None:
        return Generator(spec=spec, seed=seed, drawn_from=(), recording="")
    missing = "prompt" if spec.prompt is None else "output"
    if lengths_from is None:
        raise ArgumentError(f"{missing} must be in {spec.text!r} where no recording has lengths, got none")
    rows = recorded_lengths(lengths_from)
    if spec.tag:
        rows = tuple(row for row in rows if row.tag == spec.tag)
    name = lengths_from.about.name
    if not rows:
        raise ArgumentError(f"tag must be of the requests of {name}, got {spec.tag!r}")
    unknown = next((row for row in rows if spec.prompt is None and not row.prompt_tokens), None)
    if unknown is not None:
        raise ArgumentError(
            f"prompt must be in {spec.text!r}: {name} does not say that of request {unknown.request_id}"
        )
    return Generator(spec=spec, seed=seed, drawn_from=rows, recording=name)
