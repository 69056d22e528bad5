"""Policies side by side on one recording, each against the target alone."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from .intervals import Interval
from .resampled import Resampled
from .summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Runs of several policies under the same scenario."""

    meta: dict[str, Any]  # what was compared on: trace and its kind, cost, batch, seed, what-ifs
    # the target alone, for which nothing is modelled at any seed; None if its seconds are unknown
    baseline: Summary | None
    rows: tuple[Summary, ...]  # one per policy, in the order asked, at the first seed
    # by policy, its runs at further seeds, if they are random, and in further orders of the requests
    repeats: Mapping[str, tuple[Summary, ...]] = field(default_factory=dict)
    resampled: Resampled | None = None  # all runs, by policy; None: the uncertainty is unknown
    # the same policies at the ends of the cost's range (`CostModel.ends`), at the first seed; empty if unknown
    ends: "tuple[SideBySide, ...]" = ()

    def speed_up(self, row: Summary) -> float | None:
        """Output tokens per second over those of the target alone, prefill of every member included in both.

        The mean if a policy was run at several seeds; None without a baseline.
        """
        if self.baseline is None:
            return None
        return self.output_tokens_per_s(row) / self.output_tokens_per_s(self.baseline)

    def speed_up_interval(self, row: Summary) -> Interval | None:
        """The 95% interval over requests or sessions, and over seeds if the run is random.

        None without a baseline, or if unknown.
        """
        if self.resampled is None or self.baseline is None:
            return None
        return self.resampled.rate_over(row.policy, self.baseline.policy)

    def speed_up_range(self, row: Summary) -> tuple[float, float] | None:
        """The range over the cost's ends; None if unknown."""
        found = [end.speed_up(same) for end in self.ends for same in end.rows if same.policy == row.policy]
        known = [speed_up for speed_up in (*found, self.speed_up(row)) if speed_up is not None]
        return (min(known), max(known)) if found else None

    def ranks_alike(self, row: Summary, other: Summary) -> bool:
        """Whether `row` is as fast as `other` or faster at both ends of the cost's range, if known."""
        return all(end.rate_of(row.policy) >= end.rate_of(other.policy) for end in self.ends)

    def rate_of(self, policy: str) -> float:
        """Output tokens per second of a policy or the target alone; 0 if its seconds are unknown."""
        rows = self.rows if self.baseline is None else (*self.rows, self.baseline)
        return next((self.output_tokens_per_s(row) for row in rows if row.policy == policy), 0.0)

    def output_tokens_per_s(self, row: Summary) -> float:
        """Mean over the seeds it was run at."""
        return fmean([run.output_tokens_per_s for run in self.runs(row)])

    def output_tokens_per_s_interval(self, row: Summary) -> Interval | None:
        """Its 95% interval; None if unknown."""
        return None if self.resampled is None else self.resampled.rate(row.policy)

    def speed_up_mean_of_requests(self, row: Summary) -> float | None:
        """Mean over requests of a request's tokens per second, over the same mean of the target alone.

        Published tables use this or `speed_up`. The mean if a policy was run at several seeds; None without a baseline.
        """
        if self.baseline is None or not self.baseline.mean_request_tokens_per_s:
            return None
        own, alone = (fmean([run.mean_request_tokens_per_s for run in self.runs(one)]) for one in (row, self.baseline))
        return own / alone

    def speed_up_mean_of_requests_interval(self, row: Summary) -> Interval | None:
        """The 95% interval; None as of `speed_up_interval`."""
        if self.resampled is None or self.baseline is None:
            return None
        return self.resampled.speed_over(row.policy, self.baseline.policy)

    def over(self, row: Summary, other: Summary) -> Interval | None:
        """Output tokens per second over those of another policy, and the 95% interval; None if unknown."""
        return None if self.resampled is None else self.resampled.rate_over(row.policy, other.policy)

    def ranked(self) -> tuple[Summary, ...]:
        """The rows and the target alone, fastest first; equal ones in the order asked."""
        rows = list(self.rows)
        if self.baseline is not None and all(row.policy != self.baseline.policy for row in rows):
            rows.append(self.baseline)
        return tuple(sorted(rows, key=self.output_tokens_per_s, reverse=True))

    def runs(self, row: Summary) -> tuple[Summary, ...]:
        """All runs of the row's policy, by seed and order."""
        return (row, *self.repeats.get(row.policy, ()))

    def _num_seeds(self, row: Summary) -> int:
        shifted = bool(self.meta.get("what_if", {}).get("acceptance"))
        if self.meta.get("orders", 1) > 1 and not has_chance(row, shifted=shifted):
            return 1
        return min(len(self.runs(row)), int(self.meta.get("seeds", len(self.runs(row)))))

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/compare.md): `meta`, per policy every field of `Summary`, and more."""
        return {"meta": self.meta, "policies": [self.row_to_json(row) for row in self.rows]}

    def row_to_json(self, row: Summary) -> dict[str, Any]:
        """One of `policies` in the documented form."""
        return {
            **asdict(row),
            "output_tokens_per_s": self.output_tokens_per_s(row),
            "output_tokens_per_s_ci": _bounds(self.output_tokens_per_s_interval(row)),
            "speed_up": self.speed_up(row),
            "speed_up_ci": _bounds(self.speed_up_interval(row)),
            "speed_up_range": None if (ends := self.speed_up_range(row)) is None else list(ends),
            "speed_up_mean_of_requests": self.speed_up_mean_of_requests(row),
            "speed_up_mean_of_requests_ci": _bounds(self.speed_up_mean_of_requests_interval(row)),
            "of_best": self.output_tokens_per_s(row) / self.output_tokens_per_s(self.ranked()[0]),
            "of_best_ci": _bounds(self.over(row, self.ranked()[0])),
            "seeds": self._num_seeds(row),
            "orders": min(len(self.runs(row)), self.meta.get("orders", 1)),
        }


def has_chance(row: Summary, *, shifted: bool) -> bool:
    """Whether another seed may give another run; `shifted`: acceptance is shifted, which draws by seed."""
    return row.drawn or (shifted and any(level.drafted for level in row.levels))


def _bounds(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval.bounds)
