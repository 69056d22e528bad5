"""Limits on figures, as typed: "p99_ttft < 1, p99_tpot <= 0.03"; one grammar for every command.

A figure has its name in `--json` and Parquet files (`ttft_s_p99`, `speed_up`), and a latency also the usual one,
`p99_ttft`. Bounds are in the figure's own unit: seconds, shares, a number per second; of a latency also 200ms or 30s.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from operator import ge, gt, le, lt
from typing import Any

from ..base.errors import ArgumentError, known_are, repeated
from .serving_tables import LATENCIES, PARTS, SESSION

SIGNS: Mapping[str, Callable[[float, float], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}
# Flat names of latencies by their typed names, p99_ttft.
OF_LATENCY = {
    f"{part}_{name.lower()}": f"{figure}_{part}" for name, figure in (LATENCIES | SESSION).items() for part in PARTS
}
TYPED = {figure: name for name, figure in OF_LATENCY.items()}
SHARE = "slo_share"  # of requests that met every promise
# By latency, the most seconds that a number without a unit stands for: more are likely milliseconds.
_MOST_BARE = {"ttft": 10.0, "queue": 10.0, "tpot": 2.0, "itl": 2.0}
_LIMIT = re.compile(r"\s*([^\s<>=]+)\s*(<=|>=|<|>)\s*([^\s<>=]+)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound on one side of a figure."""

    figure: str  # its flat name, ttft_s_p99
    sign: str  # of `SIGNS`
    bound: float  # finite

    @property
    def name(self) -> str:
        """As it is typed: p99_ttft."""
        return TYPED.get(self.figure, self.figure)

    def kept(self, value: float) -> bool:
        """Whether a value is on the allowed side."""
        return SIGNS[self.sign](value, self.bound)

    def to_json(self) -> dict[str, Any]:
        return {"figure": self.figure, "sign": self.sign, "bound": self.bound}

    def __str__(self) -> str:
        return f"{self.name} {self.sign} {self.bound:g}"


def figure_named(name: str, known: Collection[str], *, argument: str) -> str:
    """The flat name, of those `known`, of a figure that is typed as p99_ttft or ttft_s_p99.

    Raises ArgumentError, which names `argument` and a similar figure, for none of them.
    """
    figure = OF_LATENCY.get(name, name)
    if figure in known:
        return figure
    spelt = [TYPED.get(one, one) for one in known]
    if name.upper() in LATENCIES or name.lower() in LATENCIES:
        parts = [one for one in spelt if one.endswith(f"_{name.lower()}")]
        near = f"say which one: {' or '.join(parts)}" if parts else known_are(name, spelt)
    else:
        same = next((one for one in spelt if _words(one) == _words(name)), None)
        near = known_are(name, spelt) if same is None else f"did you mean {same}?"
    raise ArgumentError(f"`{argument}` knows no figure {name!r}: {near}")


def _words(name: str) -> set[str]:
    """The parts of a name in any order, without units."""
    return set(name.lower().split("_")) - {"s", "ms", ""}


def limits_of(text: str, known: Collection[str], *, argument: str) -> tuple[Limit, ...]:
    """The limits in a text: NAME < NUMBER with <, <=, > or >=, separated by commas; names as of `figure_named`.

    Raises ArgumentError, which names the wrong part: another form, an unknown figure, a bound that is no number.
    """
    found = []
    for part in text.split(","):
        parts = _LIMIT.fullmatch(part)
        if parts is None:
            raise ArgumentError(
                f"`{argument}` must be NAME < NUMBER, with <, <=, > or >=, as in 'p99_ttft < 1, p99_tpot < 0.03', "
                f"got {part!r}"
            )
        name, sign, typed = parts.groups()
        figure = figure_named(name, known, argument=argument)
        told = f"`{argument}` {name}"
        bound = (
            seconds_of(typed, figure.partition("_")[0], told)
            if figure in TYPED
            else _number(typed, typed, f"{told} must have a number as its bound")
        )
        found.append(Limit(figure=figure, sign=sign, bound=bound))
    return tuple(found)


def seconds_of(text: str, latency: str, told: str) -> float:
    """The seconds of a bound on a latency, as ttft: 0.2, 200ms or 30s; `told` is what has it, for errors.

    Raises ArgumentError for no finite number, or one without a unit that is large for seconds of this latency.
    """
    number = text.removesuffix("s").removesuffix("m") if text.endswith("s") else text
    found = _number(number, text, f"{told} must have seconds as its bound, as in 0.2 or 200ms")
    if number == text and found > (most := _MOST_BARE.get(latency, 100.0)):
        raise ArgumentError(f"{told} must say its unit above {most:g}: {text}ms or {text}s, got {text}")
    return found / 1e3 if text.endswith("ms") else found


def _number(text: str, typed: str, rule: str) -> float:
    try:
        bound = float(text)
    except ValueError:
        bound = inf
    if not isfinite(bound) or not text.isascii() or "_" in text or text != text.strip():
        raise ArgumentError(f"{rule}, got {typed!r}")
    return bound


def service_limits(text: str, *, argument: str) -> tuple[Limit, ...]:
    """A service level: latencies below a bound in seconds, `slo_share` above one; each once.

    "p99_ttft < 1, p99_tpot < 0.03": mean, p50, p90, p95 or p99 of ttft, tpot, itl, e2e or queue. Raises ArgumentError
    as `limits_of`, and for another figure or side, a bound that no run can keep or break, a repeated figure.
    """
    found = limits_of(text, [*OF_LATENCY.values(), SHARE], argument=argument)
    for limit in found:
        side, most = (">", 1.0) if limit.figure == SHARE else ("<", 1e9)
        if limit.sign[0] != side:
            raise ArgumentError(f"`{argument}` {limit.name} must have {side} before its bound, got '{limit}'")
        if not (0 < limit.bound < most or (limit.sign == ">=" and limit.bound == most)):
            end = "1, or >= 1" if side == ">" else f"{most:g}"
            raise ArgumentError(f"`{argument}` {limit.name} must have a bound > 0 and < {end}, got {limit.bound:g}")
    if twice := repeated(limit.name for limit in found):
        raise ArgumentError(f"`{argument}` must name a figure once, got {twice[0]} twice")
    return found
