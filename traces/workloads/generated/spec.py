"""The text of a generator, `gamma:rate=4,cv=2,requests=1000,prompt=512,output=geometric:100`, read and checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ....arguments import ArgumentError, check_within
from ..options import MOST_COUNT
from .lengths import Length, length_of
from .processes import Constant, Diurnal, Gamma, Poisson, Process

KINDS = ("poisson", "gamma", "constant", "diurnal")
_OWN = {"gamma": ("cv",), "diurnal": ("depth", "period_s")}
_COMMON = ("rate", "requests", "seconds", "prompt", "output", "tag", "slo")
_NUMBER = re.compile(r"\d{1,20}(\.\d{1,20})?(e-?\d{1,3})?", re.ASCII)
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
    given = _pairs(kind, rest)
    if "rate" in given and rate is not None:
        raise ArgumentError(f"`rate` must be given once: {text!r} has a rate of its own, got {rate:g} too")
    if "requests" not in given and "seconds" not in given:
        raise ArgumentError(f"{kind} must have requests or seconds, so that it ends, got {rest!r}")
    requests = _number(kind, given, "requests", f"[1, {MOST_COUNT}]")
    if requests is not None and requests != int(requests):
        raise ArgumentError(f"requests of {kind} must be a whole number, got {given['requests']!r}")
    lengths = {key: length_of(f"{key} of {kind}", given[key]) for key in ("prompt", "output") if key in given}
    return GeneratorSpec(
        text=text,
        process=_process(kind, given, rate),
        requests=None if requests is None else int(requests),
        seconds=_number(kind, given, "seconds", "[1e-9, 1e9]"),
        prompt=lengths.get("prompt"),
        output=lengths.get("output"),
        tag=given.get("tag", ""),
        slo=given.get("slo", ""),
    )


def _pairs(kind: str, rest: str) -> dict[str, str]:
    known = (*_COMMON, *_OWN.get(kind, ()))
    given: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, _, value = part.partition("=")
        if key not in known:
            raise ArgumentError(f"{kind} must have options of {', '.join(known)}, got {part!r}")
        if key in given:
            raise ArgumentError(f"{kind} must have {key} once, got {part!r}")
        if not value or not value.isprintable():
            raise ArgumentError(f"{key} of {kind} must have a value, got {part!r}")
        given[key] = value
    return given


def _process(kind: str, given: Mapping[str, str], rate: float | None) -> Process:
    found = _number(kind, given, "rate", "[1e-9, 1e9]") if rate is None else rate
    if found is None:
        raise ArgumentError(f"{kind} must have a rate, in its text or as `rate`, got none")
    if kind == "poisson":
        return Poisson(rate=found)
    if kind == "constant":
        return Constant(rate=found)
    if kind == "gamma":
        cv = _number(kind, given, "cv", "[0.01, 100]")
        if cv is None:
            raise ArgumentError("gamma must have cv, the coefficient of variation of its gaps, got none")
        return Gamma(rate=found, cv=cv)
    depth = _number(kind, given, "depth", "[0, 1]")
    period_s = _number(kind, given, "period_s", "[1e-3, 1e9]")
    return Diurnal(rate=found, depth=0.5 if depth is None else depth, period_s=_DAY_S if period_s is None else period_s)


def _number(kind: str, given: Mapping[str, str], key: str, interval: str) -> float | None:
    text = given.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise ArgumentError(f"{key} of {kind} must be a number in {interval}, got {text!r}")
    check_within(f"{key} of {kind}", float(text), interval)
    return float(text)
