"""The highest rate of arrivals at which each policy keeps what is asked of it, found by bisection, seed by seed.

At one seed all policies meet the same requests, scaled to a rate, so what chance does to arrivals is in no comparison.
Logarithms are halved: a rate is found to `PRECISION` of itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from ..base.errors import ArgumentError
from ..base.terminal import Progress, held_interrupts
from ..reports.limits import SHARE, Limit, service_limits
from ..reports.rates import Crossing, HighestRate, HighestRates, three_digits
from ..reports.serving_tables import MeasuredRun
from ..traces.recording import Recording
from ..traces.workloads.drawn_arrivals import CLOSED, KINDS
from ..traces.workloads.drawn_sessions import SESSION_KINDS
from .compare import MOST_CELLS
from .load import LoadRuns, check_policies, meta_of, policies_asked
from .options import FindRatesOptions, checked, takes
from .serving import ServingSetting, notes_on, serving_setting
from .setting import NamedPolicy, PoliciesGiven

PRECISION = 0.003
FIRST_RATE = 1.0  # looked at, arrivals per second
FIRST_STEP, NEXT_STEP = 4.0, 1.2  # factors by which rates are tried, where nothing is known, and near what is
IDLE = 0.002  # requests in the batch, on average: at a lower rate each would be as much alone
BURST = 0.01  # of a run, in which all requests come: at a higher rate they would come as much at once
CROSSINGS_FROM = 1 / 64  # of the highest rate


class NoRateError(ArgumentError):
    """A policy for which no rate is found, and why."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """Runs by policy, seed and rate, each made once."""

    runs: LoadRuns
    limits: Sequence[Limit]
    made: dict[tuple[str, int, float], MeasuredRun] = field(default_factory=dict)
    chance: bool = False  # whether another seed may give another run

    def run(self, policy: NamedPolicy, seed: int, rate: float) -> MeasuredRun:
        """One run; raises KeyboardInterrupt if it was interrupted."""
        key = policy.name, seed, rate
        if key not in self.made:
            found = self.runs.run(policy, self.runs.setting.opened(rate, seed), rate, seed)
            if found is None:
                raise KeyboardInterrupt
            self.made[key] = found[0]
            self.chance |= found[1]
        return self.made[key]

    def kept(self, policy: NamedPolicy, seed: int, rate: float) -> bool:
        """Whether all limits are kept there."""
        flat = self.run(policy, seed, rate).flat
        for limit in self.limits:
            if flat[limit.figure] is None:
                raise ArgumentError(f"`limits` {limit.name} is not known: no request of the workload has one")
        return all(limit.kept(flat[limit.figure]) for limit in self.limits)

    def seconds(self, policy: NamedPolicy, seed: int, rate: float) -> float:
        """Mean time in the system; that of a workload whose requests were all rejected counts as none."""
        found = self.run(policy, seed, rate).metrics.in_system_s
        return 0.0 if found is None else found

    def highest(self, policy: NamedPolicy) -> HighestRate:
        """Over all seeds, or one if chance has no part; raises NoRateError."""
        by_seed: dict[int, float] = {}
        for seed in self.runs.seeds:
            near = list(by_seed.values())[-1:]
            by_seed[seed] = self._highest(policy, seed, *((near[0], NEXT_STEP) if near else (FIRST_RATE, FIRST_STEP)))
            if not self.chance:
                break
        flats = [self.run(policy, seed, rate).flat for seed, rate in by_seed.items()]
        figures = {limit.name: fmean(flat[limit.figure] for flat in flats) for limit in self.limits}
        return HighestRate(policy=policy.name, by_seed=by_seed, figures=figures)

    def _highest(self, policy: NamedPolicy, seed: int, rate: float, step: float) -> float:
        low = high = rate
        if self.kept(policy, seed, rate):
            while self.kept(policy, seed, high):
                self._check_burst(policy, seed, high)
                low, high = high, high * step
        else:
            while not self.kept(policy, seed, low):
                self._check_idle(policy, seed, low)
                low, high = low / step, low
        while high > low * (1 + PRECISION):
            middle = sqrt(low * high)
            low, high = (middle, high) if self.kept(policy, seed, middle) else (low, middle)
        return low

    def _check_idle(self, policy: NamedPolicy, seed: int, rate: float) -> None:
        run = self.run(policy, seed, rate)
        if (run.metrics.running_mean or 0.0) > IDLE:
            return
        broken = next(limit for limit in self.limits if not limit.kept(run.flat[limit.figure]))
        value = run.flat[broken.figure]
        raise NoRateError(
            f"`limits` {broken} holds at no rate under {policy.name}: at {three_digits(rate)} arrivals/s, the lowest "
            f"tried, where requests hardly ever meet, it is {value:.4g}"
        )

    def _check_burst(self, policy: NamedPolicy, seed: int, rate: float) -> None:
        metrics = self.run(policy, seed, rate).metrics
        if metrics.requests / rate > BURST * metrics.duration_s:
            return
        limits = ", ".join(map(str, self.limits))
        raise NoRateError(
            f"`limits` {limits} holds at every rate under {policy.name}: at {three_digits(rate)} arrivals/s, the "
            f"highest tried, all {metrics.requests:,} requests come as soon as they can; a longer workload would tell"
        )

    def crossings(self, policies: Sequence[NamedPolicy], low: float, high: float) -> Iterator[Crossing]:
        """Where the policy with the least time in the system changes, rising, between two rates."""
        first, last = self.quickest(policies, low), self.quickest(policies, high)
        if first is last or high <= low * (1 + PRECISION):
            return
        crossing = self._crossing(first, last, low, high)
        if crossing.by_seed:
            middle = exp(fmean(log(rate) for rate in crossing.by_seed.values()))
            if self.quickest(policies, middle) not in (first, last):
                yield from self.crossings(policies, low, middle)
                yield from self.crossings(policies, middle, high)
                return
        yield crossing

    def quickest(self, policies: Sequence[NamedPolicy], rate: float) -> NamedPolicy:
        """The policy with the least time in the system at a rate, on average over seeds."""
        seeds = self._seeds()
        return min(policies, key=lambda policy: fmean(self.seconds(policy, seed, rate) for seed in seeds))

    def _seeds(self) -> Sequence[int]:
        return self.runs.seeds if self.chance else self.runs.seeds[:1]

    def _crossing(self, first: NamedPolicy, last: NamedPolicy, low: float, high: float) -> Crossing:
        by_seed = {}
        for seed in self._seeds():
            bottom, top = low, high
            if not (self._behind(first, last, seed, bottom) < 0 < self._behind(first, last, seed, top)):
                continue
            while top > bottom * (1 + PRECISION):
                middle = sqrt(bottom * top)
                is_below = self._behind(first, last, seed, middle) < 0
                bottom, top = (middle, top) if is_below else (bottom, middle)
            by_seed[seed] = sqrt(bottom * top)
        return Crossing(below=first.name, above=last.name, by_seed=by_seed, seeds=len(self._seeds()))

    def _behind(self, first: NamedPolicy, last: NamedPolicy, seed: int, rate: float) -> float:
        return self.seconds(first, seed, rate) - self.seconds(last, seed, rate)


@takes(FindRatesOptions)
def find_rates(
    recording: Recording | str | Path | None = None,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    limits: str,
    **options: Any,  # noqa: ANN401 - see `FindRatesOptions`
) -> HighestRates:
    """The highest rate of arrivals at which each policy keeps all limits, and where policies change places.

    All policies meet the same requests at a seed, scaled to a rate. Below the rate that is found the limits may be
    broken as well, where a figure does not rise with the rate. Policies change places in the mean time in the system,
    looked for from a 64th of the highest rate on.

    Args:
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        policies: as `compare` takes them; None: a representative set.
        workload: a file of requests, or a generator's text, without a rate of its own.
        cluster: a TOML file, or a device of the sheet.
        limits: what is asked for, as "p99_ttft < 1, p99_tpot < 0.03": mean, p50, p90, p95 or p99 of ttft, tpot, itl,
            e2e or queue, in seconds; with `slo` also "slo_share > 0.9".
        options: see `FindRatesOptions`; `start` may be "prefill" only.

    Raises:
        ValueError: an argument, a row of the workload, a cluster or a policy that will not do, in one line; limits that
            hold at no rate, or at every one.
        CostRangeError: seconds that the cost does not know.
        PolicyError: a policy that broke the contract.
        KeyboardInterrupt: nothing is kept of what was found until then.
    """
    asked = checked(FindRatesOptions, options | {"workload": workload, "cluster": cluster, "limits": limits})
    wanted = service_limits(limits, argument="limits")
    setting = serving_setting(recording, workload, cluster, asked)
    _check(setting, asked, wanted)
    tables = setting.tables(setting.replay.seed)
    named = policies_asked(policies, asked.chains, tables, most=MOST_CELLS)
    check_policies(setting, named, tables)
    setting.check_classes(setting.opened(FIRST_RATE, setting.replay.seed))
    with held_interrupts() as interrupts, Progress("finding rates", len(named), unit="policies") as progress:
        runs = LoadRuns(
            setting, tables, interrupts, progress, folder=None, partial=policies is None and asked.chains is None
        )
        search = _Search(runs=runs, limits=wanted)
        rows, without = _rows(search, named)
        bear = [policy for policy in named if policy.name in {row.policy for row in rows}]
        high = max(max(row.by_seed.values()) for row in rows)
        low = high * CROSSINGS_FROM
        quickest = search.quickest(bear, low).name
        crossings = tuple(search.crossings(bear, low, high))
    return HighestRates(
        limits=wanted,
        rows=tuple(sorted(rows, key=lambda row: row.rate.mean, reverse=True)),
        looked_at=(low, high),
        quickest=quickest,
        crossings=crossings,
        meta=meta_of(setting),
        remarks=tuple(dict.fromkeys((*notes_on(setting), *runs.notes, *without, *runs.left_out))),
    )


def _rows(search: _Search, policies: Sequence[NamedPolicy]) -> tuple[list[HighestRate], list[str]]:
    """What was found, and for which policies nothing was; raises the first reason where it is none at all."""
    rows: list[HighestRate] = []
    reasons: list[NoRateError] = []
    for policy in policies:
        with search.runs.refusals(policy):
            try:
                rows.append(search.highest(policy))
            except NoRateError as error:
                reasons.append(error)
        search.runs.progress.advance()
    if not rows:
        raise reasons[0] if reasons else next(iter(search.runs.refused.values()))
    return rows, [str(reason).removeprefix("`limits` ") for reason in reasons]


def _check(setting: ServingSetting, asked: FindRatesOptions, limits: Sequence[Limit]) -> None:
    """Refuse what would have no part; raises ArgumentError."""
    kind, _, rest = setting.workload.partition(":")
    drawn = kind in {*KINDS, *SESSION_KINDS}
    if kind == CLOSED or (drawn and any(part.startswith("rate=") for part in rest.split(","))):
        rule = "must have times of arrival, and leave their rate open, where rates are found"
        raise ArgumentError(f"`workload` {rule}, got {setting.workload!r}")
    for name in ("time_scale", "concurrency", "active_sessions"):
        if (number := getattr(setting.changes, name)) is not None:
            raise ArgumentError(f"`{name}` has no part where rates are found, got {number:g}")
    if setting.horizon_s is not None:
        whose = "`horizon_s`" if asked.horizon_s is not None else f"horizon_s of {setting.cluster.name}"
        rule = "must be left out where rates are found: it would cut what makes a rate too high"
        raise ArgumentError(f"{whose} {rule}, got {setting.horizon_s:g}")
    of_goodput = any(limit.figure == SHARE for limit in limits)
    if setting.promised.any and not of_goodput:
        raise ArgumentError("`slo` goes with a limit on slo_share, as in 'slo_share > 0.9', got none")
    if of_goodput and not setting.promised.any:
        raise ArgumentError("`limits` slo_share goes with `slo`, which says what is promised")
