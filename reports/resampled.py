"""The uncertainty of a comparison: a paired bootstrap over the requests, and over the seeds if results are random.

A *unit* is drawn: a session with all its requests, or a request without one. Turns of a conversation are correlated, so
drawing them one by one would make intervals too narrow. Each resample draws units and seeds, the same ones for every
policy. With a fixed mix of tags units are drawn within their tags (a session of several tags among those of the same
ones), and units alone in their tags are drawn together. Of n units n - 1 are drawn and each weighs n / (n - 1), which
keeps the variance right where n is small (Rao & Wu 1988, JASA 83). Percentiles are widened by Student's t over the
normal one, since the spread of few units is uncertain. Letters: N requests, U units, R runs, B resamples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import counted
from ..runs.log import RunLog
from .intervals import NORMAL, Interval, OverTags, t_quantile, two_digits_up
from .seconds_by_tag import request_seconds

LEAST_UNITS = 5  # with fewer the spread is unknown
RESAMPLES, LEAST = 2000, 400  # for few units, and for many, which need fewer
MOST_DRAWN = 1 << 23  # units in all resamples together, beyond LEAST
AT_ONCE = 1 << 20  # weights in memory

Floats = NDArray[np.float64]


def resamples(num_units: int) -> int:
    """B for U units."""
    return min(RESAMPLES, max(LEAST, MOST_DRAWN // num_units))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestShares:
    """`[N]` tokens and seconds of each request of a run, by id in ascending order.

    Attributes:
        request_id, tag: as recorded.
        tokens: emitted; 0 if it failed.
        seconds: that the run spent on it; see `request_seconds`.
        speed: its tokens over the seconds from its arrival to its end; NaN if it failed or took no time.
    """

    request_id: NDArray[np.object_]
    tag: NDArray[np.object_]
    tokens: Floats
    seconds: Floats
    speed: Floats

    @classmethod
    def of(cls, log: RunLog) -> "RequestShares":
        """Those of a run."""
        requests = log.requests
        order = np.argsort(requests["request_id"], kind="stable")
        finished = requests["failed"] == ""
        tokens = np.where(finished, requests["emitted_tokens"], 0).astype(np.float64)
        took_s = requests["finished_at_s"] - requests["arrived_at_s"]
        speed = np.full(len(tokens), np.nan)
        np.divide(tokens, took_s, out=speed, where=finished & (took_s > 0))
        return cls(
            request_id=requests["request_id"][order],
            tag=requests["tag"][order],
            tokens=tokens[order],
            seconds=request_seconds(log)[order],
            speed=speed[order],
        )

    def is_like(self, other: "RequestShares") -> bool:
        """Whether each request is the same, except for rounding."""
        return bool(np.array_equal(self.tokens, other.tokens) and np.allclose(self.seconds, other.seconds, rtol=1e-9))

    def rates(self) -> dict[str, float]:
        """Output tokens per second of each tag's own requests, tags in alphabetical order."""
        own = {tag: self.tag == tag for tag in sorted(set(self.tag.tolist()))}
        return {tag: float(self.tokens[of].sum() / self.seconds[of].sum()) for tag, of in own.items()}


class Resampled:
    """Figures of policies over resamples of the requests that they all ran.

    Attributes:
        num_units: U.

    Args:
        runs: by policy, one for each of its seeds, at least one; all of the same requests.
        sessions: by request, the session that it belongs to; requests without one are left out.
        fixed_mix: whether the number of requests of each tag is fixed.

    Raises:
        ValueError: runs of different requests.
    """

    def __init__(
        self,
        runs: Mapping[str, Sequence[RequestShares]],
        *,
        sessions: Mapping[str, str] | None = None,
        fixed_mix: bool = False,
    ) -> None:
        self._fixed_mix = fixed_mix
        self._runs = {policy: tuple(shares) for policy, shares in runs.items()}
        self._first = next(iter(self._runs.values()))[0]
        for policy, shares in self._runs.items():
            if any(not np.array_equal(one.request_id, self._first.request_id) for one in shares):
                raise ValueError(f"runs must be of the same requests, {policy} had others")
        places: dict[tuple[str, bool], int] = {}
        named = [(sessions or {}).get(one) or "" for one in self._first.request_id]
        ids = [(name or one, bool(name)) for name, one in zip(named, self._first.request_id, strict=True)]
        self._unit = np.array([places.setdefault(one, len(places)) for one in ids], dtype=np.intp)  # `[N]`
        self.num_units = len(places)

    @property
    def num_requests(self) -> int:
        """N."""
        return len(self._unit)

    @property
    def units(self) -> str:
        """What is drawn, in words: "requests", or "sessions" where some belong together."""
        return "requests" if self.num_units == self.num_requests else "sessions"

    @property
    def drawn_from(self) -> str:
        """How many there are, in words: "160 requests", "160 requests of 40 sessions"."""
        requests = counted(self.num_requests, "request")
        return requests if self.units == "requests" else f"{requests} of {counted(self.num_units, 'session')}"

    @property
    def is_known(self) -> bool:
        """Whether there are enough units; else all figures below are None."""
        return self.num_units >= LEAST_UNITS

    def rate(self, policy: str) -> Interval | None:
        """Output tokens per second."""
        return self._interval(lambda: self._drawn[0], policy, None)

    def rate_of_tags(self, policy: str, over: OverTags, other: str | None = None) -> Interval | None:
        """The mean or the least of the output tokens per second of each tag's own requests, perhaps over another's."""
        return self._interval(lambda: self._drawn_of_tags[over], policy, other)

    def rate_over(self, policy: str, other: str) -> Interval | None:
        """Output tokens per second over those of another policy, on the same requests."""
        return self._interval(lambda: self._drawn[0], policy, other)

    def speed_over(self, policy: str, other: str) -> Interval | None:
        """Mean over requests of a request's tokens per second, over the same mean of another policy."""
        return self._interval(lambda: self._drawn[1], policy, other)

    def enough_units(self, policy: str, other: str) -> int | None:
        """About how many units like these would separate two policies; None if they are equally fast."""
        interval = self.rate_over(policy, other)
        if interval is None:
            return None
        gap = float(np.log(interval.mean))
        towards = float(np.log(interval.mean / interval.low if gap > 0 else interval.high / interval.mean))
        if abs(gap) < 1e-9:
            return None
        return two_digits_up(max(self.num_units * (towards / gap) ** 2, self.num_units + 1))

    def _interval(
        self, figures: "Callable[[], Mapping[str, _Drawn]]", policy: str, other: str | None
    ) -> Interval | None:
        if not self.is_known:  # too few units to draw
            return None
        sides = [figures()[name] for name in (policy, other) if name is not None]
        if not all((side.values > 0).all() for side in sides):  # a resample may have no token
            return None
        point, values = sides[0].point, sides[0].values
        if other is not None:
            point, values = point / sides[1].point, values / sides[1].values
        low, high = np.quantile(np.log(values / point), [0.025, 0.975]) * self._widened
        if max(abs(low), abs(high)) < 1e-12:  # so that a rounding error does not look like a spread
            low = high = 0.0
        return Interval(mean=point, low=point * float(np.exp(low)), high=point * float(np.exp(high)))

    @cached_property
    def _strata(self) -> list[NDArray[np.intp]]:
        """Places of the units that are drawn together."""
        if not self._fixed_mix:
            return [np.arange(self.num_units)]
        held: list[set[str]] = [set() for _ in range(self.num_units)]
        for unit, tag in zip(self._unit.tolist(), self._first.tag.tolist(), strict=True):
            held[unit].add(tag)
        tags = [tuple(sorted(one)) for one in held]
        places = [np.array([at for at, own in enumerate(tags) if own == tag]) for tag in sorted(set(tags))]
        several = [own for own in places if len(own) > 1]
        single = [own for own in places if len(own) == 1]
        if len(single) == 1 and several:
            several[-1] = np.concatenate([several[-1], single[0]])
        elif single:
            several.append(np.concatenate(single))
        return several

    @cached_property
    def _widened(self) -> float:
        return t_quantile(max(self.num_units - len(self._strata), 1)) / NORMAL

    def _by_unit(self, values: NDArray[Any]) -> Floats:
        """`[U, R]` sums of the requests of each unit, of `[N, R]`."""
        sums = np.zeros((self.num_units, values.shape[1]))
        np.add.at(sums, self._unit, values)
        return sums

    def _weights(self) -> Iterator[Floats]:
        """`[b, U]` of some resamples at a time; b adds up to B."""
        rng, count = np.random.default_rng(0), self.num_units
        left = resamples(count)
        while left:
            rows = min(left, max(1, AT_ONCE // count))
            weights = np.zeros((rows, count))
            for places in self._strata:
                size = len(places)
                drawn = rng.multinomial(size - 1, np.full(size, 1 / size), size=rows)
                weights[:, places] = drawn * (size / (size - 1))
            yield weights
            left -= rows

    @cached_property
    def _drawn(self) -> tuple[dict[str, "_Drawn"], dict[str, "_Drawn"]]:
        """By policy, tokens per second of the run, and the mean of those of its requests."""
        shares = [one for runs in self._runs.values() for one in runs]
        # `[N, R]`
        tokens, seconds, speeds = (
            np.stack([getattr(one, name) for one in shares], axis=1) for name in ("tokens", "seconds", "speed")
        )
        known = np.isfinite(speeds)
        tokens, seconds, speeds, known = map(self._by_unit, (tokens, seconds, np.where(known, speeds, 0.0), known))
        rates, means = [], []
        for weights in self._weights():
            rates.append(_product(weights, tokens) / _product(weights, seconds))
            with np.errstate(invalid="ignore"):
                means.append(_product(weights, speeds) / _product(weights, known))
        with np.errstate(invalid="ignore"):
            whole = tokens.sum(0) / seconds.sum(0), speeds.sum(0) / known.sum(0)
        return self._by_policy(whole[0], np.concatenate(rates)), self._by_policy(whole[1], np.concatenate(means))

    @cached_property
    def _drawn_of_tags(self) -> "dict[OverTags, dict[str, _Drawn]]":
        """By figure and policy."""
        shares = [one for runs in self._runs.values() for one in runs]
        tokens, seconds = (np.stack([getattr(one, name) for one in shares], axis=1) for name in ("tokens", "seconds"))
        of_tags = []  # of each tag the units that have requests of it, and `[units, R]` their tokens and seconds
        for tag in sorted(set(self._first.tag.tolist())):
            own = self._first.tag == tag
            units = np.unique(self._unit[own])
            of_tags.append((units, *(self._by_unit(one * own[:, None])[units] for one in (tokens, seconds))))
        found = {}
        for over in OverTags:
            with np.errstate(invalid="ignore", divide="ignore"):  # a tag's only request may not be drawn
                values = [
                    over_tags_of(
                        over,
                        [
                            _product(part[:, units], ours) / _product(part[:, units], took)
                            for units, ours, took in of_tags
                        ],
                    )
                    for part in self._weights()
                ]
            points = over_tags_of(over, [ours.sum(0) / took.sum(0) for _, ours, took in of_tags])
            found[over] = self._by_policy(points, np.concatenate(values))
        return found

    def _by_policy(self, points: Floats, values: Floats) -> dict[str, "_Drawn"]:
        """From `[R]` figures of runs and `[B, R]` of their resamples: each draws as many seeds and takes their mean.

        All draw the same ones: at one seed policies have the same draws. So an interval is of its policies alone,
        whatever others there are, and in which order.
        """
        found, first = dict[str, _Drawn](), 0
        for policy, runs in self._runs.items():
            count = len(runs)
            columns = first + np.random.default_rng(1).integers(count, size=(len(values), count))
            drawn = np.take_along_axis(values, columns, axis=1).mean(1)
            found[policy] = _Drawn(float(points[first : first + count].mean()), drawn)
            first += count
        return found


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A figure, and `[B]` its values in resamples."""

    point: float
    values: Floats


def over_tags_of(over: OverTags, figures: Sequence[Floats]) -> Floats:
    """The mean or the least of arrays of one shape, element by element."""
    found: Floats = np.mean(figures, axis=0) if over is OverTags.mean else np.min(figures, axis=0)
    return found


def _product(weights: Floats, figures: NDArray[Any]) -> Floats:
    """`[b, U]` times `[U, R]`. A matrix product would start BLAS threads, which takes longer."""
    found: Floats = np.einsum("bn,nr->br", weights, figures)
    return found
