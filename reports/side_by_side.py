"""Policies side by side on one recording, each against the target alone."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .intervals import Interval, mean_interval
from .summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Runs of several policies under the same scenario."""

    meta: dict[str, Any]  # what was compared on: trace and its kind, cost, batch, seed, what-ifs
    # the target alone, of which nothing is modelled at any seed; None if its seconds are unknown
    baseline: Summary | None
    rows: tuple[Summary, ...]  # one per policy, in the order asked, at the first seed
    # by policy, its runs at further seeds, where chance has a part in them
    repeats: Mapping[str, tuple[Summary, ...]] = field(default_factory=dict)

    def speed_up(self, row: Summary) -> float | None:
        """Output tokens per second over those of the target alone, prefill of every member included in both.

        Of a policy that was run at several seeds the mean; None without a baseline.
        """
        return None if self.baseline is None else self.output_tokens_per_s(row) / self.baseline.output_tokens_per_s

    def speed_up_interval(self, row: Summary) -> Interval | None:
        """The 95% interval over seeds; None for a policy run once, and without a baseline."""
        if self.baseline is None:
            return None
        alone = self.baseline.output_tokens_per_s
        return self._interval(row, lambda run: run.output_tokens_per_s / alone)

    def output_tokens_per_s(self, row: Summary) -> float:
        """Mean over the seeds it was run at."""
        interval = self.output_tokens_per_s_interval(row)
        return row.output_tokens_per_s if interval is None else interval.mean

    def output_tokens_per_s_interval(self, row: Summary) -> Interval | None:
        """The 95% interval over seeds; None for a policy run once."""
        return self._interval(row, lambda run: run.output_tokens_per_s)

    def speed_up_mean_of_requests(self, row: Summary) -> float | None:
        """Mean over requests of a request's tokens per second, over the same mean of the target alone.

        Published tables use this or `speed_up`. Of a policy that was run at several seeds the mean; None without a
        baseline.
        """
        if self.baseline is None or not self.baseline.mean_request_tokens_per_s:
            return None
        interval = self.speed_up_mean_of_requests_interval(row)
        if interval is not None:
            return interval.mean
        return row.mean_request_tokens_per_s / self.baseline.mean_request_tokens_per_s

    def speed_up_mean_of_requests_interval(self, row: Summary) -> Interval | None:
        """The 95% interval over seeds; None for a policy run once, and without a baseline."""
        if self.baseline is None or not self.baseline.mean_request_tokens_per_s:
            return None
        alone = self.baseline.mean_request_tokens_per_s
        return self._interval(row, lambda run: run.mean_request_tokens_per_s / alone)

    def ranked(self) -> tuple[Summary, ...]:
        """The rows and the target alone, fastest first; equal ones in the order asked."""
        rows = list(self.rows)
        if self.baseline is not None and all(row.policy != self.baseline.policy for row in rows):
            rows.append(self.baseline)
        return tuple(sorted(rows, key=self.output_tokens_per_s, reverse=True))

    def runs(self, row: Summary) -> tuple[Summary, ...]:
        """All runs of the row's policy, by seed."""
        return (row, *self.repeats.get(row.policy, ()))

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
            "speed_up_mean_of_requests": self.speed_up_mean_of_requests(row),
            "speed_up_mean_of_requests_ci": _bounds(self.speed_up_mean_of_requests_interval(row)),
            "seeds": len(self.runs(row)),
        }

    def _interval(self, row: Summary, figure: Callable[[Summary], float]) -> Interval | None:
        runs = self.runs(row)
        return mean_interval([figure(run) for run in runs]) if len(runs) > 1 else None


def has_chance(row: Summary, *, shifted: bool) -> bool:
    """Whether another seed may give another run; `shifted`: whether acceptance is, which is drawn by seed."""
    return row.exact_share < 1 or (shifted and any(level.drafted for level in row.levels))


def _bounds(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval.bounds)
