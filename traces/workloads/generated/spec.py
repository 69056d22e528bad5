"""The text of a generator, `gamma:rate=4,cv=2,requests=1000,prompt=512,output=geometric:100`, read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from ....arguments import ArgumentError
from ..options import MOST_REQUESTS
from .lengths import Length, length_of
from .processes import Constant, Diurnal, Gamma, Poisson, Process
from .spec_text import check_expected, number_of, pairs_of, whole_of

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
