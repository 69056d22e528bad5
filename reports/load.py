"""Policies under load side by side: their tables, the best one at each rate, and where the order is uncertain.

Policies at one rate meet the same requests at the same seed, so their figures are compared seed by seed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from ..base.errors import counted
from ..policies.chain_text import BASELINE
from .cost_range import gain, gain_range, is_better_at_ends, ranges_table
from .intervals import Interval, enough_in_words, enough_values, interval_or_point, paired, with_ends
from .page import Pictured
from .panels import AnyPanel, Panel, Section, Series, ranking
from .serving import Promises
from .serving_tables import (
    LATENCIES,
    PARTS,
    PROMISED,
    TAKEN,
    SeedRow,
    ServingReport,
    Shown,
    cells_of,
    class_table,
    columns,
    milliseconds,
    reject_alike,
    rejecting_fewest,
    rows_of_runs,
    served_title,
)
from .tables import Grid, between, table
from .waterfall import Why, why_table
from .waterfall_under_load import LOSSES_UNDER_LOAD, UNKNOWN_UNDER_LOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The figure that policies are compared by."""

    figure: str  # by its flat name
    words: str  # its name in words
    most: bool  # whether more is better


# By the share of requests, which are the same for all policies: a rate over the whole run would also depend on how fast
# the last ones end.
GOODPUT = Aim(figure="slo_share", words="highest SLO met", most=True)
IN_SYSTEM = Aim(figure="in_system_s", words="least time in the system", most=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best policy at a rate."""

    rate: float | None  # arrivals per second; None: the workload's own
    policy: str  # of the best mean; the first of equal ones
    # others that cannot be told apart from it: equal, or with 0 in the 95% interval of the difference at the same
    # seeds, which all have the same requests
    tied: tuple[str, ...]
    same: tuple[str, ...] = ()  # those of them with the same figure at every seed
    by_cost: tuple[str, ...] = ()  # others that are better at an end of the cost's range
    rejecting: tuple[str, ...] = ()  # others that reject requests which it serves: their times are of fewer requests
    aim: Aim = IN_SYSTEM  # the figure in which it is best
    seeds: int = 1  # number of seeds compared
    enough: int | None = None  # about how many seeds would separate one of `tied` from it

    @property
    def open_to(self) -> tuple[str, ...]:
        """Those that more seeds would separate from it."""
        return tuple(policy for policy in self.tied if policy not in self.same)


def best_at(rate: float | None, rows: Sequence[SeedRow], aim: Aim) -> Best | None:
    """The best of the policies that were run at a rate; None where a figure of one is unknown.

    Where all met the same promises at every seed, the time in the system decides, among those that reject the fewest
    requests: it does not count rejected ones.
    """
    rejecting: tuple[str, ...] = ()
    if aim is IN_SYSTEM:
        fewest = rejecting_fewest(rows, lambda row: row.rejected)
        rejecting = tuple(row.about.policy for row in rows if not reject_alike(row.rejected, fewest[0].rejected))
        rows = fewest
    means = [row.mean(aim.figure) for row in rows]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(rows):
        return None
    best = rows[known.index(max(known) if aim.most else min(known))]
    others = [row for row in rows if row is not best]
    apart = [(row.about.policy, _differences(best, row, aim.figure)) for row in others]
    if aim is GOODPUT and others and not any(any(differences) for _, differences in apart):
        return best_at(rate, rows, IN_SYSTEM)
    tied = {
        policy: found for policy, found in apart if interval_or_point(found).low <= 0 <= interval_or_point(found).high
    }
    better = [row.about.policy for row in others if not is_better_at_ends(best, row, aim.figure, most=aim.most)]
    enough = [enough_values(differences) for differences in tied.values() if len(differences) > 1]
    return Best(
        rate=rate,
        aim=aim,
        policy=best.about.policy,
        tied=tuple(tied),
        same=tuple(policy for policy, differences in apart if not any(differences)),
        by_cost=tuple(policy for policy in better if policy not in tied),
        rejecting=rejecting,
        seeds=max((len(differences) for _, differences in apart), default=1),
        enough=min((number for number in enough if number is not None), default=None),
    )


def in_words(found: Sequence[Best], aim: Aim) -> list[str]:
    """The best policy by rate, each change of it, and ties; rates rise."""
    if not found:
        return []
    lines = []
    for by, of_aim in groupby(found, key=lambda best: best.aim):
        parts = []
        for policy, same in groupby(of_aim, key=lambda best: best.policy):
            rates = [best.rate for best in same]
            parts.append(f"{policy} {_span(rates)}")
        tied = "" if by is aim else f"{aim.words}: a tie, all met as many promises; "
        lines.append(f"{tied}{by.words}: {'; '.join(parts)}")
    for low, high in pairwise(found):
        if low.policy != high.policy and low.aim is high.aim:
            lines.append(
                f"between {_rate(low.rate)} and {_rate(high.rate)} the best policy changes from {low.policy} to "
                f"{high.policy}"
            )
    lines += _at_rates(
        (best.rate, f"{_list(best.same)} did exactly as well as {best.policy}" if best.same else "") for best in found
    )
    lines += _at_rates((best.rate, _rejecting(best)) for best in found)
    for (policy, open_to, seeds), of_rates in groupby(found, key=lambda best: (best.policy, best.open_to, best.seeds)):
        if open_to:
            bests = list(of_rates)
            enough = [best.enough for best in bests if best.enough is not None]
            most = max(enough) if len(enough) == len(bests) else None
            told = not_told_apart(open_to, policy, seeds=seeds, enough=most)
            lines.append(f"{_span([best.rate for best in bests])} {told}")
    return [*lines, *_at_rates((best.rate, _open_by_cost(best)) for best in found)]


def _open_by_cost(best: Best) -> str:
    if not best.by_cost or best.policy == BASELINE:
        return ""
    return f"{_list(best.by_cost)} cannot be told apart from {best.policy} by this cost"


def _rejecting(best: Best) -> str:
    if not best.rejecting:
        return ""
    verb = "reject" if len(best.rejecting) > 1 else "rejects"
    return f"{_list(best.rejecting)} {verb} requests that {best.policy} serves: their times are not compared"


def _at_rates(said: Iterable[tuple[float | None, str]]) -> list[str]:
    """A line for neighbouring rates with the same text; "" is skipped."""
    found = [(text, [rate for rate, _ in same]) for text, same in groupby(said, key=lambda one: one[1])]
    return [f"{_span(rates)} {text}" for text, rates in found if text]


def not_told_apart(policies: Sequence[str], best: str, *, seeds: int, enough: int | None) -> str:
    """In the words of a comparison without load; about `enough` seeds would separate one policy from the best."""
    on = "this seed" if seeds == 1 else f"these {counted(seeds, 'seed')}"
    told = f"{', '.join(policies)} cannot be told apart from {best} on {on}"
    return told if enough is None else f"{told}; {enough_in_words(enough, 'seeds', len(policies))}"


# Figures in which rejected requests count, too.
OF_ALL = ("output_tokens_per_s", "goodput_per_s", "slo_share")
# Figures in which others are compared with the best policy.
COMPARED = (
    *OF_ALL,
    "in_system_s",
    *(f"{LATENCIES[name]}_{part}" for name in ("TTFT", "TPOT", "E2E") for part in PARTS),
)


def less(row: SeedRow, other: SeedRow) -> dict[str, Interval]:
    """By flat name the differences of two rows' figures at the same seeds; with one seed without width.

    Both have the same requests. A figure that is unknown in either is left out; so are times where they rejected
    different numbers of them.
    """
    alike = COMPARED if reject_alike(row.rejected, other.rejected) else OF_ALL
    known = [name for name in alike if row.mean(name) is not None and other.mean(name) is not None]
    return {name: interval_or_point(_differences(row, other, name)) for name in known}


def to_json(found: Sequence[Best]) -> list[Mapping[str, object]]:
    """A row for each rate."""
    return [
        {
            "rate": best.rate,
            "by": best.aim.figure,
            "policy": best.policy,
            "tied": list(best.tied),
            "tied_by_cost": list(best.by_cost),
            "rejecting": list(best.rejecting),
            "seeds": best.seeds,
            "seeds_enough": best.enough,
        }
        for best in found
    ]


def _differences(best: SeedRow, other: SeedRow, figure: str) -> list[float]:
    return [a - b for a, b in paired(best.by_seed(figure), other.by_seed(figure))]


def _span(rates: Sequence[float | None]) -> str:
    if rates[0] is None:
        return "at the workload's own rate"
    return f"at {_rate(rates[0])}" if len(rates) == 1 else f"from {rates[0]:g} to {_rate(rates[-1])}"


def _rate(rate: float | None) -> str:
    return "the workload's own rate" if rate is None else f"{rate:g} arrivals/s"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


QUICK: Shown = {
    **columns("tokens/s", "TTFT ms"),
    "p99": TAKEN["TTFT p99"],
    **columns("TPOT ms", "in system ms"),
}
# One column, so that both are in every part of a table that does not fit.
RATE_AND_POLICY = "arrivals/s: policy"


SPEED_UP = "speed-up"
MOST_LINEAR = 8  # times the least rate; beyond that the axis of rates is logarithmic


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """All policies at one rate."""

    rate: float | None  # arrivals per second; None: the workload's own
    rows: tuple[SeedRow, ...]  # one per policy
    alone: SeedRow | None  # the target alone on the same requests, in `rows` or not; None: it could not be run

    def gain(self, row: SeedRow) -> Interval | None:
        """The gain of a policy over the target alone, see `cost_range.gain`; None if unknown."""
        return None if self.alone is None else gain(row, self.alone)

    def gain_range(self, row: SeedRow) -> tuple[float, float] | None:
        """The same at the ends of the cost's range."""
        return None if self.alone is None else gain_range(row, self.alone)

    @property
    def gain_open(self) -> list[str]:
        """Policies that may gain or lose over the target alone, within the cost's range; not who does as it does."""
        found = {row.about.policy: self.gain_range(row) for row in self.rows if row is not self.alone}
        return [policy for policy, ends in found.items() if ends is not None and ends[0] <= 1 <= ends[1] != ends[0]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadComparison(Pictured):
    """Policies under load; prints as `paceline compare --workload` does."""

    rates: tuple[AtRate, ...]  # rising
    promised: Promises  # service levels by class that goodput counts
    meta: dict[str, Any]  # what was compared on: workload, cluster, trace
    remarks: tuple[str, ...]  # remarks that readers of the figures need, a line each
    why: Mapping[float | None, Why] | None = None  # by rate where gains go; None: not requested
    num_missing: int = 0  # pairs of rate and policy that an interrupt left out

    @property
    def aim(self) -> Aim:
        """What decides the best policy: goodput if there are promises."""
        return GOODPUT if self.promised.any else IN_SYSTEM

    @property
    def best(self) -> tuple[Best, ...]:
        """The best by rate, for rates at which every policy was run."""
        whole_rates = [one for one in self.rates if len(one.rows) == max(len(other.rows) for other in self.rates)]
        found = [best_at(one.rate, one.rows, self.aim) for one in whole_rates]
        return tuple(best for best in found if best is not None)

    def tables(self, *, detail: bool = False) -> Sequence[Grid]:
        """One row per rate and policy, then by class if classes have promises; `detail`: those of `metrics` too."""
        named = [({RATE_AND_POLICY: _called(one, row)}, row) for one in self.rates for row in one.rows]
        gains = [between(one.gain_range(row), unknown="-") for one in self.rates for row in one.rows]
        found = [self._table(), ranges_table(named, gains), self._why()]
        if not detail:
            found += [class_table(named, promised=True)] if self.promised.classes else []
            return [grid for grid in found if grid is not None]
        rows = tuple(row for _, row in named)
        found += [self._behind(), *ServingReport(rows=rows, promised=self.promised, noted=False).tables()]
        return [grid for grid in found if grid is not None]

    def lines(self) -> Sequence[str]:
        several = any(len(one.rows) > 1 for one in self.rates)
        lines = in_words(self.best, self.aim) if several else []
        told = {best.rate: best.policy for best in self.best if BASELINE in best.by_cost} if several else {}
        for_what = "cannot be told apart from the target alone by this cost"
        open_to = [(one.rate, [name for name in one.gain_open if name != told.get(one.rate)]) for one in self.rates]
        return lines + _at_rates((rate, f"{_list(names)} {for_what}" if names else "") for rate, names in open_to)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/serving.md)."""
        why = [{"rate": rate, **row} for rate, why in (self.why or {}).items() for row in why.to_json()]
        return {
            **self.meta,
            **self.promised.to_json(),
            "rows": [
                {"rate": one.rate, **row.to_json(), **_gain_json(one, row), "less_best": self._less_best(one, row)}
                for one in self.rates
                for row in one.rows
            ],
            **({} if self.why is None else {"why": why}),
            "best_by": self.aim.figure,
            "best": to_json(self.best),
            "conclusion": list(self.lines()),
            "remarks": list(self.remarks),
            "missing": self.num_missing,
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each run."""
        rows = [(one.rate, row) for one in self.rates for row in one.rows]
        return rows_of_runs([({"rate": rate, "policy": row.about.policy}, row) for rate, row in rows])

    def sections(self) -> Sequence[Section]:
        """By rate, how much sooner requests end than under the first policy (`plain` if present); and their times."""
        policies = list(dict.fromkeys(row.about.policy for one in self.rates for row in one.rows))
        first = "plain" if "plain" in policies else policies[0]
        by_rate = {one.rate: {row.about.policy: row for row in one.rows} for one in self.rates}
        speed = {
            policy: {
                rate: gain(rows[policy], rows[first])
                for rate, rows in by_rate.items()
                if policy in rows and first in rows
            }
            for policy in policies
        }
        found = [_against_rate(f"Speed-up over {first}, time in the system", SPEED_UP, speed)]
        figures = [("Mean time in the system", "in_system_s", "ms", 1e3)]
        figures += [("Goodput", "goodput_per_s", "requests/s", 1.0)] if self.promised.any else []
        for title, figure, unit, scale in [*figures, ("Throughput", "output_tokens_per_s", "output tokens/s", 1.0)]:
            values = {
                policy: {rate: _scaled(rows[policy], figure, scale) for rate, rows in by_rate.items() if policy in rows}
                for policy in policies
            }
            found.append(_against_rate(title, unit, values))
        first_table, *others = self.tables(detail=True)
        latencies = Section(topic="latency", tables=tuple(others))
        drawn = tuple(panel for panel in found if panel is not None)
        return [Section(topic="load", tables=(first_table,), panels=drawn), latencies]

    def answer(self) -> Sequence[str]:
        """The best policy by rate; for a single policy its figures."""
        return self.lines() or [f"one policy: {self.rates[0].rows[0].about.policy}; nothing to compare it with"]

    def configuration(self) -> Mapping[str, Any]:
        return self.meta

    def partial(self) -> str:
        return f"{counted(self.num_missing, 'run')} left out" if self.num_missing else ""

    def headline(self) -> str:
        sure = any(len(row.runs) > 1 for one in self.rates for row in one.rows)
        return self._title() + "; bars: 95% interval over seeds" * sure

    def _table(self) -> Grid:
        best = {(found.rate, found.policy) for found in self.best}
        cells: list[dict[str, str]] = []
        bold: list[tuple[int, int | None]] = []
        ends: list[int] = []
        for one in self.rates:
            for row in one.rows:
                if (one.rate, row.about.policy) in best:
                    bold.append((len(cells), None))
                cells.append({RATE_AND_POLICY: _called(one, row), "gain": _gained(one, row)})
                cells[-1] |= cells_of(row, self._shown(), "")
            ends.append(len(cells) - 1)
        return table(cells, title=self._title(), remarks=self._remarks(), bold=bold, lines=ends)

    def _why(self) -> Grid | None:
        if self.why is None:
            return None
        rows = [(f"{_at(rate)}: {name}", lost) for rate, why in self.why.items() for name, lost in why.policies.items()]
        every, unknown = Why(policies=dict(rows)), UNKNOWN_UNDER_LOAD
        return why_table(every, LOSSES_UNDER_LOAD, named=RATE_AND_POLICY, unknown=unknown) if rows else None

    def _best_row(self, at_rate: AtRate) -> SeedRow | None:
        names = {best.rate: best.policy for best in self.best}
        return next((row for row in at_rate.rows if row.about.policy == names.get(at_rate.rate)), None)

    def _less_best(self, at_rate: AtRate, row: SeedRow) -> dict[str, dict[str, Any]] | None:
        best = self._best_row(at_rate)
        if best is None:
            return None
        return {name: one.to_json() for name, one in less(row, best).items()}

    def _behind(self) -> Grid | None:
        """Differences of the others to the best policy of a rate; None where no rate has a best one and others."""
        cells: list[dict[str, str]] = []
        ends: list[int] = []
        for one in self.rates:
            best = self._best_row(one)
            others = [] if best is None else [(row, less(row, best)) for row in one.rows if row is not best]
            for row, found in others:
                known = {head: (found.get(name), style) for head, (name, style) in self._differing().items()}
                cells.append(
                    {RATE_AND_POLICY: _called(one, row)}
                    | {head: _signed(interval, style) for head, (interval, style) in known.items()}
                )
            if others:
                ends.append(len(cells) - 1)
        if not cells:
            return None
        said = "policy less the best one at the rate, seed by seed, with 95% intervals of the mean"
        return table(cells, title="behind the best; latencies in ms", remarks=[said], lines=ends)

    def _differing(self) -> Shown:
        tails = {
            f"{name} {part}": (f"{LATENCIES[name]}_{part}", milliseconds)
            for name in ("TTFT", "TPOT", "E2E")
            for part in ("mean", "p99")
        }
        return {**columns("tokens/s"), **(PROMISED if self.promised.any else {}), **tails}

    def _shown(self) -> Shown:
        """Without empty columns: rejected and unfinished requests where there are none."""
        rows = [row for one in self.rates for row in one.rows]
        failed = {
            name: one
            for name, one in columns("rejected", "unfinished").items()
            if any(row.mean(one[0]) for row in rows)
        }
        return {
            **columns("finished"),
            **failed,
            **QUICK,
            **(PROMISED if self.promised.any else {}),
            **columns("preempted", "busy"),
        }

    def _title(self) -> str:
        return served_title(self.meta, self.promised.in_words())

    def _remarks(self) -> list[str]:
        rows = [row for one in self.rates for row in one.rows]
        remarks = list(self.remarks)
        remarks.append("gain: mean time in the system under the target alone, over that under the policy")
        if any(run.metrics.unfinished for row in rows for run in row.runs):
            remarks.append(
                "unfinished requests are in no latency but the time in the system, which counts until the run ended"
            )
        if any(len(row.runs) > 1 for row in rows):
            remarks.append("±: 95% interval of the mean over seeds; at one seed all policies met the same requests")
            if any(_is_askew(gain) for one in self.rates for row in one.rows if (gain := one.gain(row))):
                remarks.append("(A to B): both ends of this interval, where ± would misplace them")
        return remarks


def _gained(at_rate: AtRate, row: SeedRow) -> str:
    found = at_rate.gain(row)
    if found is None:
        return "-"
    if _is_askew(found):
        return with_ends(found, "{:.2f}x".format)
    return f"{found.mean:.2f}x{f' ± {found.half_width:.2f}' if found.half_width else ''}"


def _is_askew(gain: Interval) -> bool:
    """Whether ± would misplace an end by more than a tenth of what it shows: at few seeds, even below 0."""
    return sum(gain.bounds) / 2 - gain.mean > gain.half_width / 10


def _gain_json(at_rate: AtRate, row: SeedRow) -> dict[str, Any]:
    found, ends = at_rate.gain(row), at_rate.gain_range(row)
    return {
        "gain": None if found is None else found.mean,
        "gain_ci": None if found is None else list(found.bounds),
        "gain_range": None if ends is None else list(ends),
    }


def _signed(interval: Interval | None, style: Callable[[float], str]) -> str:
    if interval is None:
        return "-"
    sign = "+" if interval.mean >= 0 else "-"
    width = f" ± {style(interval.half_width)}" if interval.half_width else ""
    return f"{sign}{style(abs(interval.mean))}{width}"


def _scaled(row: SeedRow, figure: str, scale: float) -> Interval | None:
    """A figure over seeds, times `scale`; None where a run does not have it."""
    mean, interval = row.mean(figure), row.interval(figure)
    if mean is None:
        return None
    low, high = (mean, mean) if interval is None else interval.bounds
    return Interval(mean=scale * mean, low=scale * low, high=scale * high)


def _against_rate(
    title: str, unit: str, values: Mapping[str, Mapping[float | None, Interval | None]]
) -> AnyPanel | None:
    """A line for each policy over the rates, or a ranking if there is one rate; None without figures."""
    every = {
        policy: [(rate, found) for rate, found in of_rate.items() if found is not None]
        for policy, of_rate in values.items()
    }
    known = {policy: found for policy, found in every.items() if found}
    if not known:
        return None
    sure = any(each.half_width for found in known.values() for _, each in found)
    rates = [rate for found in known.values() for rate, _ in found if rate]
    if len(set(rates)) < 2:
        figures = {policy: (each.mean, each.bounds if sure else None) for policy, ((_, each),) in known.items()}
        shown_as: dict[str, Any] = {"reference": 1.0, "unit": "x"} if unit == SPEED_UP else {"style": ",.1f"}
        named = title if unit == SPEED_UP else f"{title}, {unit}"
        return ranking(named, figures, bars="bars: 95% interval over seeds", **shown_as)
    series = tuple(
        Series(
            name=policy,
            x=tuple(float(rate or 0.0) for rate, _ in found),
            y=tuple(each.mean for _, each in found),
            ends=tuple(each.bounds for _, each in found) if sure else None,
        )
        for policy, found in known.items()
    )
    wide = max(rates) > MOST_LINEAR * min(rates)
    return Panel(title=title, x_label="arrivals/s", y_label=unit, series=series, log_x=wide)


def _called(at_rate: AtRate, row: SeedRow) -> str:
    return f"{_at(at_rate.rate)}: {row.about.policy}"


def _at(rate: float | None) -> str:
    return "own" if rate is None else f"{rate:g}"
