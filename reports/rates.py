"""The highest rates of arrivals at which policies keep all limits, and rates at which their order changes.

Rates are found seed by seed, so policies are compared on the same arrivals. Means and intervals are of logarithms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log
from statistics import fmean
from typing import Any

from .intervals import Interval, enough_values, geometric_interval, paired, with_ends
from .limits import Limit
from .load import not_told_apart
from .serving import Promises
from .serving_tables import served_title, styled, whole
from .tables import Grid, Printed, flat_rows, table


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRate:
    """The highest rate at one seed, and its uncertainty; arrivals per second.

    If limits hold and break alternately as the rate rises, `broken_from` is less than `kept_up_to`; else all are equal.
    """

    rate: float  # limits are kept there
    broken_from: float  # the lowest rate around it at which a limit is broken
    kept_up_to: float  # the highest one at which all are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """A policy's highest rate at which all limits are kept."""

    policy: str
    found: Mapping[int, SeedRate]  # by seed; a single one if nothing is random
    figures: Mapping[str, float]  # by name of a limit, the figure there, mean over seeds
    rejected: Mapping[int, float]  # requests that the run there rejects, by seed

    @property
    def by_seed(self) -> dict[int, float]:
        """Rate by seed."""
        return {seed: one.rate for seed, one in self.found.items()}

    @property
    def turns(self) -> tuple[float, float]:
        """Geometric means over seeds of the rates where limits first break and last hold, over the rate; 1 if clear."""
        logs = [(log(one.broken_from / one.rate), log(one.kept_up_to / one.rate)) for one in self.found.values()]
        low, high = (exp(fmean(ends)) for ends in zip(*logs, strict=True))
        return low, high

    @property
    def rate(self) -> Interval:
        """Geometric mean over seeds."""
        return geometric_interval(list(self.by_seed.values()))

    def over(self, other: "HighestRate") -> Interval:
        """Rate over that of another policy, seed by seed."""
        return geometric_interval(self.ratios(other))

    def ratios(self, other: "HighestRate") -> list[float]:
        """The same by seed."""
        return [ours / theirs for ours, theirs in paired(self.by_seed, other.by_seed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the order of two policies by mean time in the system changes; all rates are arrivals per second.

    Between `low` and `high` the 95% interval over seeds of the difference contains 0, so this is an interval of the
    rate too.
    """

    below: str  # the better one at lower rates
    above: str  # at higher rates
    rate: float  # where both have equal means over seeds
    low: float | None  # <= rate; None: `below` is surely better at no tested lower rate
    high: float | None  # >= rate; None: the same for `above` at higher ones

    def __str__(self) -> str:
        names = f"{self.below} below, {self.above} above {three_digits(self.rate)}"
        if self.low is not None and self.high is not None:
            ends = f" ({three_digits(self.low)} to {three_digits(self.high)})" if self.high > self.low else ""
            return f"{names}{ends} arrivals/s"
        unsure = [
            f"{one} is surely the better one at no {side} rate"
            for one, side, end in ((self.below, "lower", self.low), (self.above, "higher", self.high))
            if end is None
        ]
        return f"{names} arrivals/s, which may be chance: {' and '.join(unsure)}"

    def to_json(self) -> dict[str, Any]:
        return {"below": self.below, "above": self.above, "rate": self.rate, "rate_ci": [self.low, self.high]}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HighestRates(Printed):
    """Policies by the arrivals that they sustain; prints as `paceline compare --workload --find-rate` does."""

    limits: tuple[Limit, ...]  # at least one
    rows: tuple[HighestRate, ...]  # the highest rate first; at least one
    looked_at: tuple[float, float]  # arrivals per second between which crossings were searched
    quickest: str  # the policy with the least time in the system at the lower one
    crossings: tuple[Crossing, ...]  # rising
    asked: float | None = None  # arrivals per second that clusters like this one are to sustain together
    promised: Promises = field(default_factory=Promises)  # service levels, which a limit on `slo_share` is of
    meta: dict[str, Any]  # what was compared on: workload, cluster, trace
    remarks: tuple[str, ...]  # remarks that readers of the figures need, a line each

    @property
    def best(self) -> str:
        """The policy that sustains most."""
        return self.rows[0].policy

    @property
    def tied(self) -> tuple[HighestRate, ...]:
        """Others that cannot be told apart from it: the 95% interval of the ratio at the same seeds contains 1."""
        best, *others = self.rows
        found = [(row, row.over(best)) for row in others]
        return tuple(row for row, over in found if over.low <= 1 <= over.high)

    def tables(self) -> Sequence[Grid]:
        title = served_title(self.meta, ", ".join(map(str, self.limits)), self.promised.in_words())
        remarks = list(self.remarks)
        if any(len(row.by_seed) > 1 for row in self.rows):
            remarks.append(
                "in brackets: 95% interval over seeds; at one seed all policies met the same arrivals, scaled"
            )
        for row in self.rows:
            low, high = (f"{end:.2f}" for end in row.turns)
            if low != high:
                remarks.append(f"{row.policy}: limits hold and break in turns from {low} to {high} times its rate")
        remarks += [] if self.asked is None else [shared_evenly(self.asked)]
        cells = [self._cells(row) for row in self.rows]
        return (table(cells, title=title, remarks=remarks, bold={(0, None)}),)

    def _cells(self, row: HighestRate) -> dict[str, str]:
        return {
            "policy": row.policy,
            "arrivals/s": with_ends(row.rate, three_digits),
            **(
                {}
                if self.asked is None
                else {f"for {self.asked:g}/s": with_ends(clusters_for(self.asked, row.rate), whole)}
            ),
            "of the best": "1" if row is self.rows[0] else with_ends(row.over(self.rows[0]), styled(".3f")),
            **{f"{name} there": f"{three_digits(figure)}" for name, figure in row.figures.items()},
        }

    def lines(self) -> Sequence[str]:
        low, high = map(three_digits, self.looked_at)
        changes = self.crossings or [f"{self.quickest} from {low} to {high} arrivals/s"]
        return [self._most(), *(f"least time in the system: {one}" for one in changes)] if len(self.rows) > 1 else []

    def _most(self) -> str:
        best, tied = self.rows[0], self.tied
        said = f"best: {best.policy}, {three_digits(best.rate.mean)} arrivals/s"
        if not tied:
            return said
        logs = [[log(ratio) for ratio in row.ratios(best)] for row in tied]
        enough = [enough_values(values) for values in logs if len(values) > 1]
        known = min((number for number in enough if number is not None), default=None)
        names = [f"{row.policy} ({three_digits(row.rate.mean)})" for row in tied]
        return f"{said}; {not_told_apart(names, 'it', seeds=max(map(len, logs)), enough=known)}"

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving.md)."""
        return {
            **self.meta,
            **self.promised.to_json(),
            "limits": [one.to_json() for one in self.limits],
            "policies": [self._row_to_json(row) for row in self.rows],
            "looked_at": list(self.looked_at),
            "quickest": self.quickest,
            "crossings": [one.to_json() for one in self.crossings],
            "conclusion": list(self.lines()),
            "remarks": list(self.remarks),
        }

    def _row_to_json(self, row: HighestRate) -> dict[str, Any]:
        over = row.over(self.rows[0])
        return {
            "policy": row.policy,
            "rate": row.rate.mean,
            "rate_ci": list(row.rate.bounds),
            **({} if self.asked is None else {"clusters": clusters_for(self.asked, row.rate).mean}),
            "rate_by_seed": {str(seed): rate for seed, rate in row.by_seed.items()},
            "of_best": over.mean,
            "of_best_ci": list(over.bounds),
            "turns": list(row.turns),
            "figures": dict(row.figures),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy."""
        rows = [self._row_to_json(row) for row in self.rows]
        return flat_rows([{key: value for key, value in row.items() if key != "rate_by_seed"} for row in rows])


def clusters_for(rate: float, highest: Interval) -> Interval:
    """The least number of clusters that sustain a rate, each at most the highest rate of one; ends by its interval."""
    most, mean, least = (ceil(rate / each) for each in (highest.low, highest.mean, highest.high))
    return Interval(mean=mean, low=least, high=most)


def shared_evenly(rate: float) -> str:
    """What `clusters_for` assumes, for a reader."""
    alike = "gets as many of the arrivals, and finds as much in its prefix cache"
    return f"for {rate:g}/s: clusters like this one that sustain it, if each {alike}"


def three_digits(number: float) -> str:
    """A number > 0, rounded, without an exponent."""
    return f"{float(f'{number:.3g}'):,g}"
