"""A decision under load: which draft length serves a workload fastest within all limits, and what others miss.

Candidates are chosen on one half of the recorded requests; every figure here is from the other half.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from ..base.errors import counted
from .cost_range import gain
from .intervals import Interval, with_ends
from .ledger import LedgerLine, Pasteable, RecommendationLedger, Recommended, Standing
from .limits import Limit
from .panels import Section, ranking
from .rates import clusters_for, shared_evenly, three_digits
from .recommendation import Recommendation, recommendation_table
from .serving_tables import SeedRow, what_was_asked, whole
from .tables import Grid, Printed, between, flat_rows, table

IN_SYSTEM = "in_system_s"
MOST_DRAWN = 15  # candidates in a figure


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestKept:
    """The highest rate at which a candidate keeps all limits."""

    rate: Interval | None  # arrivals per second; None: none was found
    reason: str = ""  # why none was found; "" if one was
    at_any: bool = False  # whether they are kept at every rate: the workload is too short to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCandidate:
    """A policy that serves the workload at the requested rate."""

    policy: str
    standing: Standing
    reason: str  # of its standing
    row: SeedRow | None  # its runs; None where there is none
    over_plain: Interval | None  # mean time in the system of the target alone over its own, seed by seed
    range_of_cost: tuple[float, float] | None  # of that ratio, at the ends of the cost's range
    kv_tokens: int | None  # tokens for which the target's keys and values have room, beside the policy's models
    highest: HighestKept | None = None  # None without limits

    @property
    def in_system_s(self) -> float | None:
        """Mean time in the system, mean over seeds."""
        return None if self.row is None else self.row.mean(IN_SYSTEM)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaysUpTo:
    """Up to which rate of arrivals speculation pays; in words, and as a number if known."""

    words: str
    rate: float | None  # arrivals per second, above which the target alone has the least time in the system


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecommendationUnderLoad(Recommended):
    """Candidates that serve a workload; prints as `paceline recommend --workload` does."""

    meta: dict[str, Any]  # as of `compare` under load, of the requests that were not used for the choice
    limits: tuple[Limit, ...]  # all must be kept; empty without any
    rate: float | None  # arrivals per second; None: the workload's own
    candidates: tuple[ServedCandidate, ...]  # the least time in the system first
    chosen: str | None  # a policy; None where none keeps the limits
    tied: tuple[str, ...]  # others that cannot be told apart from it
    open_because: str  # why no setting is named although one is chosen; "" if one is named
    at_slow_end: str  # by how much it misses limits at the slow end of the cost; "" if it keeps them
    present: str | None  # the policy that is set now
    observed: Printed | None  # the present setting, simulated and observed
    crossing: PaysUpTo | None  # None without limits, or without drafting
    setting: Pasteable | None  # to paste
    advice: tuple[str, ...]
    by_batch: Recommendation | None  # K by running requests without arrivals; None: no cost of one device
    remarks: tuple[str, ...]  # remarks that readers of the figures need, a line each
    ledger: RecommendationLedger

    def headline(self) -> str:
        title = [f"{name} {self.meta[name]}" for name in ("workload", "cluster", "trace")]
        title += [
            *([] if self.rate is None else [f"{self.rate:g} arrivals/s"]),
            *what_was_asked(self.meta["setting"], self.meta["cluster"]),
        ]
        return "; ".join([*title, *([", ".join(map(str, self.limits))] if self.limits else [])])

    def sections(self) -> Sequence[Section]:
        seconds = {one.policy: (one.in_system_s, None) for one in self.candidates[:MOST_DRAWN] if one.in_system_s}
        chosen = [policy for policy in seconds if policy == self.chosen]
        title = "Mean time in the system, s"
        drawn = [ranking(title, seconds, filled=chosen, told="filled: chosen", style=".3g")] if seconds else []
        by_batch = [] if self.by_batch is None else [panel for one in self.by_batch.sections() for panel in one.panels]
        return [Section(topic="load", tables=tuple(self.tables()), panels=(*drawn, *by_batch))]

    def answer(self) -> Sequence[str]:
        """All that is printed except the setting."""
        return [*self._told(), *self.advice]

    def tables(self) -> Sequence[Grid]:
        best = {(place, None) for place, one in enumerate(self.candidates) if one.policy == self.chosen}
        found = [table(map(self._cells, self.candidates), title=self.headline(), remarks=self._remarks(), bold=best)]
        if self.by_batch is not None:
            grid = recommendation_table(self.by_batch)
            found.append(replace(grid, remarks=tuple(one for one in grid.remarks if one not in self.remarks)))
        return [*found, *(self.observed.tables() if self.observed is not None else ())]

    def _remarks(self) -> list[str]:
        chosen_on = counted(self.meta["requests_tuned_on"], "recorded request")
        intervals = [one.over_plain for one in self.candidates]
        intervals += [one.highest.rate for one in self.candidates if one.highest is not None]
        has_ends = any(interval is not None and interval.half_width for interval in intervals)
        said = [
            f"chosen on {chosen_on}, figures are of the other {self.meta['requests']:,}",
            "gain: mean time in the system of the target alone over the candidate's, at the same arrivals"
            + "; in brackets: 95% interval over seeds" * has_ends,
        ]
        shared = self._shared_rate()
        return [*said, *([] if shared is None else [shared_evenly(shared)]), *self.remarks]

    def _shared_rate(self) -> float | None:
        """The rate, if it is higher than the highest of some candidate."""
        found = [one.highest.rate for one in self.candidates if one.highest is not None]
        rate = self.rate
        return rate if rate is not None and any(one is not None and one.mean < rate for one in found) else None

    def _cells(self, one: ServedCandidate) -> dict[str, str]:
        cells = {"candidate": one.policy, "": one.standing if self.limits else ""}
        if not self.limits:
            del cells[""]
        for limit in self.limits:
            value = None if one.row is None else one.row.mean(limit.figure)
            cells[f"{limit.name} s"] = "" if value is None else f"{value:.4g}"
        seconds = one.in_system_s
        cells["in system s"] = "" if seconds is None else f"{seconds:.4g}"
        cells["gain"] = "" if one.over_plain is None else with_ends(one.over_plain, _ratio)
        if any(other.range_of_cost is not None for other in self.candidates):
            cells["range of cost"] = between(one.range_of_cost)
        if any(other.kv_tokens is not None for other in self.candidates):
            cells["KV tokens"] = "" if one.kv_tokens is None else f"{one.kv_tokens:,}"
        if one.highest is not None:
            rate = one.highest.rate
            cells["highest rate"] = (
                ("any" if one.highest.at_any else "none") if rate is None else with_ends(rate, three_digits)
            )
            if (shared := self._shared_rate()) is not None:
                cells[f"for {shared:g}/s"] = "" if rate is None else with_ends(clusters_for(shared, rate), whole)
        return cells

    def lines(self) -> Sequence[str]:
        return [*self.answer(), *([] if self.setting is None else ["", *self.setting.lines()])]

    def _told(self) -> list[str]:
        found = [self._decision()]
        if self.at_slow_end:
            found.append(f"if seconds are as slow as nine in ten measurements allow, it misses: {self.at_slow_end}")
        found += [f"{one.policy} is {one.standing}: {one.reason}" for one in self.candidates if self._is_listed(one)]
        found += [] if self.crossing is None else [self.crossing.words]
        if self.observed is not None:
            found += ["the present setting, simulated and observed:", *self.observed.lines()]
        return found

    def _is_listed(self, one: ServedCandidate) -> bool:
        """Whether a line says why it was not chosen; not for infeasible ones if another is (the ledger has all)."""
        return one.standing is not Standing.feasible and (
            self.chosen is None or one.policy == self.present or one.standing is not Standing.infeasible
        )

    def _decision(self) -> str:
        limits = ", ".join(map(str, self.limits))
        if self.chosen is None:
            missing = f"keeps {limits} at this rate" if self.limits else "serves every request"
            return f"no candidate {missing}, so no setting is named"
        own = next(one for one in self.candidates if one.policy == self.chosen)
        said = f"best: {self.chosen}" + (f" keeps {limits}" if self.limits else "")
        if own.over_plain is not None and self.chosen != "plain":
            said += f"; {_ratio(own.over_plain.mean)}x as fast as the target alone"
        if self.present is not None and self.present != self.chosen:
            now = next(one for one in self.candidates if one.policy == self.present)
            over = None if now.row is None or own.row is None else gain(own.row, now.row)
            if over is not None:
                said += f", {_ratio(over.mean)}x as fast as the present {self.present}"
        if self.tied:
            said += f"; these seeds do not tell it from {', '.join(self.tied)}"
        return said + (f"; no setting is named: {self.open_because}" if self.open_because else "")

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/recommend.md), the ledger in it."""
        return {
            "meta": self.meta,
            "limits": [one.to_json() for one in self.limits],
            "rate": self.rate,
            "served": [_to_json(one) for one in self.candidates],
            "chosen": self.chosen,
            "tied": list(self.tied),
            "open_because": self.open_because,
            "at_slow_end": self.at_slow_end,
            "present": self.present,
            "observed": None if self.observed is None else self.observed.to_json(),
            "crossing": None if self.crossing is None else asdict(self.crossing),
            "setting": None if self.setting is None else self.setting.to_json(),
            "advice": list(self.advice),
            "batches": None if self.by_batch is None else self.by_batch.to_json()["batches"],
            "remarks": list(self.remarks),
            **self.ledger.to_json(),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each candidate."""
        return flat_rows([_to_json(one) | {"chosen": one.policy == self.chosen} for one in self.candidates])


def _to_json(one: ServedCandidate) -> dict[str, Any]:
    highest = one.highest
    return {
        "policy": one.policy,
        "standing": str(one.standing),
        "reason": one.reason,
        "in_system_s": one.in_system_s,
        "gain": None if one.over_plain is None else one.over_plain.mean,
        "gain_ci": None if one.over_plain is None else list(one.over_plain.bounds),
        "gain_range": None if one.range_of_cost is None else list(one.range_of_cost),
        "kv_tokens": one.kv_tokens,
        "highest_rate": None if highest is None or highest.rate is None else highest.rate.mean,
        "highest_rate_ci": None if highest is None or highest.rate is None else list(highest.rate.bounds),
        "highest_rate_reason": "" if highest is None else highest.reason,
    }


def missed(row: SeedRow, limits: Sequence[Limit]) -> str:
    """By how much limits are missed at the worst seed, and requests that were rejected; "" if all limits are kept."""
    rejected = fmean(row.by_seed("rejected").values())
    found = [f"{rejected:g} requests a run are rejected"] if rejected else []
    for limit in limits:
        values = [value for value in row.by_seed(limit.figure).values() if value is not None]
        worst = max(values, default=None)
        if worst is None:
            found.append(f"no request has a {limit.name}")
        elif not limit.kept(worst):
            times, shown = f"{worst / limit.bound:.3g} times", f"{worst:.4g}"
            if times == "1 times":  # which reads as kept
                times, shown = "not below" if limit.sign == "<" else "above", f"{worst:.6g}"
            found.append(f"{limit.name} is {shown}, {times} the limit {limit.bound:g}")
    return "; ".join(found)


def served_lines(candidates: Sequence[ServedCandidate]) -> tuple[LedgerLine, ...]:
    """The lines of the ledger, numbered from 1."""
    return tuple(
        LedgerLine(
            number=number,
            policy=one.policy,
            batch=None,
            standing=one.standing,
            reason=one.reason,
            figures={
                name: value for name, value in _to_json(one).items() if name not in ("policy", "standing", "reason")
            },
            by_seed={
                str(run.meta.about.seed): {
                    name: value for name, value in run.flat.items() if isinstance(value, int | float | None)
                }
                for run in (() if one.row is None else one.row.runs)
            },
        )
        for number, one in enumerate(candidates, start=1)
    )


def _ratio(number: float) -> str:
    return f"{number:.2f}"
