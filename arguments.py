"""Arguments that are refused: in one line that names the argument, its range and what was given instead."""

import re
from collections.abc import Collection, Hashable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import TypeVar

_NAMED = re.compile(r"`(\w+)`")
# Options that are not called as the argument of the function that they go to.
OPTIONS = {"policies": "policy", "recording": "trace", "batches": "batch", "tags": "tag", "decide_s": "decide_seconds"}
OPTIONS |= {"horizon_s": "horizon_seconds", "rates": "rate"}  # of workloads
OPTIONS |= {"names": "drafter", "token_drafters": "token_drafter", "windows": "window"}  # of `ImportOptions`
OPTIONS |= {"prefilled": "start", "load": "requests", "limit_bytes": "kv_limit_mib", "devices": "device"}
# What rules of files ask for; whatever else they have in backquotes is a field of the file.
_OF_RULES = re.compile("`(line|models|names|output_tokens|replace|requests|windows|workload|zero_tokens)`")


Value = TypeVar("Value", bound=Hashable)


class ArgumentError(ValueError):
    """An argument that does not do; its text has the names of arguments in backquotes: "`batch` must be >= 1, got 0".

    The command line prints its options instead of them.
    """


def with_options(text: str, *, rule: bool = False, own: Collection[str] = ()) -> str:
    """What is said of arguments, said of options.

    Args:
        text: as an ArgumentError says it.
        rule: whether it is the rule of a file.
        own: options of the command that are called as the argument is, whatever others call it.
    """
    named = _OF_RULES if rule else _NAMED
    known = {name: option for name, option in OPTIONS.items() if name not in own}
    return named.sub(lambda name: f"--{known.get(name[1], name[1]).replace('_', '-')}", text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names at most two of `known`, spelt nearly like `name`; empty if there is none."""
    near = get_close_matches(name.lower(), list(known), n=2, cutoff=0.78)
    return f"did you mean {' or '.join(near)}?" if near else ""


def known_are(name: str, known: Iterable[str], *others: str) -> str:
    """What to say after an unknown name: `did_you_mean`, else all that is known, and `others` in words."""
    names = list(known)
    return did_you_mean(name, names) or f"known are {', '.join([*names, *others])}"


def check_within(name: str, value: float, interval: str) -> None:
    """Raise ArgumentError, which names the argument, unless a value lies in an interval, as in "[0, 1)".

    An end may say what it is, "[1, most=16]"; an open end at "inf" asks for a finite value. NaN lies in none.
    """
    low, high, words = _read(interval)
    if not (
        (low <= value if interval[0] == "[" else low < value)
        and (value <= high if interval[-1] == "]" else value < high)
    ):
        raise ArgumentError(f"{name} must be {words}, got {value!r}")


def check_least(name: str, value: float, least: float) -> None:
    """Raise ArgumentError, which names the argument, unless a value is `least` or more."""
    if not value >= least:
        raise ArgumentError(f"{name} must be >= {least}, got {value!r}")


def repeated(values: Iterable[Value]) -> list[Value]:
    """Values that came before, in order, once for each repetition; takes time linear in their number."""
    seen: set[Value] = set()
    again = []
    for value in values:
        if value in seen:
            again.append(value)
        seen.add(value)
    return again


@lru_cache
def _read(interval: str) -> tuple[float, float, str]:
    """Both ends, and what is said of a value between them."""
    low, high = interval[1:-1].split(", ")
    least = ">=" if interval[0] == "[" else ">"
    words = f"{least} {low} and finite" if interval.endswith("inf)") else f"in {interval}"
    return float(low), float(high.rpartition("=")[2].replace(",", "")), words
