"""Arguments that are refused: in one line that names the argument, its range and what was given instead."""

import re
from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

_NAMED = re.compile(r"`(\w+)`")
# Options that are not called as the argument of the function that they go to.
OPTIONS = {"policies": "policy", "recording": "trace", "batches": "batch", "tags": "tag", "decide_s": "decide_seconds"}
OPTIONS |= {"horizon_s": "horizon_seconds", "rates": "rate"}  # of workloads
OPTIONS |= {"names": "drafter", "token_drafters": "token_drafter", "windows": "window"}  # of `ImportOptions`
OPTIONS |= {"prefilled": "start", "load": "requests", "limit_bytes": "kv_limit_mib", "devices": "device"}
# What rules of files ask for; whatever else they have in backquotes is a field of the file.
_OF_RULES = re.compile("`(line|models|names|output_tokens|replace|requests|windows|workload|zero_tokens)`")
_MOST_LISTED = 120  # characters of names that are known

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


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A question that names at most three of `known`, spelt nearly like `name`; empty if there is none."""
    spelt = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), spelt, n=3, cutoff=0.78) if isinstance(name, str) else []
    return f"did you mean {' or '.join(spelt[each] for each in near)}?" if near else ""


def known_are(name: object, known: Iterable[str], *others: str, where: str = "") -> str:
    """What to say after an unknown name: `did_you_mean`, else what is known, and `others` in words.

    Of a long list it has the beginning, the number, and `where` all are told.
    """
    names = list(known)
    return did_you_mean(name, names) or f"known are {', '.join([_beginning(names, where), *others])}"


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


def _beginning(names: Sequence[str], where: str) -> str:
    """Names with commas between: all of them, or as many as can be read and how many there are."""
    ends = list(accumulate(len(name) + 2 for name in names))
    shown = bisect_right(ends, _MOST_LISTED)
    if shown == len(names):
        return ", ".join(names)
    return f"{', '.join(names[:shown])}, ... ({len(names)} in all{where and ': '}{where})"


@lru_cache
def _read(interval: str) -> tuple[float, float, str]:
    """Both ends, and what is said of a value between them."""
    low, high = interval[1:-1].split(", ")
    least = ">=" if interval[0] == "[" else ">"
    words = f"{least} {low} and finite" if interval.endswith("inf)") else f"in {interval}"
    return float(low), float(high.rpartition("=")[2].replace(",", "")), words
