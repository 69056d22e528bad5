"""The text of a generator: a kind, a colon, and options by their keys."""

import re
from collections.abc import Mapping, Sequence

from ....arguments import ArgumentError, check_within, known_are
from ..options import MOST_REQUESTS

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
