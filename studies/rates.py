"""The highest rate of arrivals at which each policy keeps all limits, found by bisection, seed by seed.

At one seed all policies get the same requests, scaled to a rate, so random arrivals cancel in comparisons. Bisection is
of logarithms: a rate is found to `PRECISION` of itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from ..base.errors import ArgumentError, check_within
from ..base.terminal import Progress, held_interrupts
from ..reports.intervals import Interval, interval_or_point
from ..reports.limits import SHARE, Limit, service_limits
from ..reports.rates import Crossing, HighestRate, HighestRates, SeedRate, three_digits
from ..reports.serving_tables import MeasuredRun, reject_alike, rejecting_fewest, short_of
from ..traces.recording import Recording
from ..traces.workloads.arrival import MOST_REQUESTS
from ..traces.workloads.drawn_arrivals import CLOSED, KINDS, Given
from ..traces.workloads.drawn_sessions import SESSION_KINDS
from .compare import MOST_CELLS
from .load import LoadRuns, check_policies, meta_of, policies_asked, try_policies
from .options import FindRatesOptions, LoadOptions, checked, takes
from .serving import ServingSetting, serving_setting
from .setting import NamedPolicy, PoliciesGiven

PRECISION = 0.003
FIRST_RATE = 1.0  # the first one tried, arrivals per second
AROUND, REACH = 1.03, 4  # the factor between rates tried around one, and their number on either side
FIRST_STEP, NEXT_STEP = 4.0, 1.2  # factors between tried rates, at first, and near a known one
IDLE = 0.002  # mean requests in the batch; at lower rates each request is just as alone
BURST = 0.01  # share of a run in which all requests arrive; at higher rates they would just as well arrive at once
MOST_DRAWN = 200_000  # expected requests of a run: half a minute of processor, and a search has some 25 such runs
CROSSINGS = tuple(2 ** (step / 2 - 6) for step in range(13))  # of the highest rate, where policies are compared
# Remarks on rates: what their brackets do not hold, and where an empty server at the start flatters them.
UNRANGED = "these rates are by the fitted seconds alone: serving at a given `rate` has both ends of their range"
EMPTY_AT_FIRST = (
    "a server that is empty at first keeps limits that it breaks later: a longer workload may find lower rates"
)


class NoRateError(ArgumentError):
    """A policy without a highest rate, and why."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """Runs by policy, seed and rate, each made once."""

    runs: LoadRuns
    limits: Sequence[Limit]
    made: dict[tuple[str, int, float], MeasuredRun] = field(default_factory=dict)

    def run(self, policy: NamedPolicy, seed: int, rate: float) -> MeasuredRun:
        """One run; raises KeyboardInterrupt if it was interrupted, ArgumentError for far too many requests."""
        key = policy.name, seed, rate
        if key not in self.made:
            _check_drawn(self.runs.setting, rate)
            found = self.runs.run(policy, self.runs.setting.opened(rate, seed), rate, seed)
            if found is None:
                raise KeyboardInterrupt
            self.made[key] = found[0]
        return self.made[key]

    def kept(self, policy: NamedPolicy, seed: int, rate: float) -> bool:
        flat = self.run(policy, seed, rate).flat
        for limit in self.limits:
            if flat[limit.figure] is None:
                raise ArgumentError(f"`limits` {limit.name} is not known: no request of the workload has one")
        return all(limit.kept(flat[limit.figure]) for limit in self.limits)

    def seconds(self, policy: NamedPolicy, seed: int, rate: float) -> float:
        """Mean time in the system; 0 if all requests were rejected."""
        found = self.run(policy, seed, rate).metrics.in_system_s
        return 0.0 if found is None else found

    def highest(self, policy: NamedPolicy) -> HighestRate:
        """The highest rate over all seeds, or one if nothing is random; raises NoRateError."""
        found: dict[int, SeedRate] = {}
        for seed in self.runs.seeds:
            near = [one.rate for one in found.values()][-1:]
            found[seed] = self._highest(policy, seed, *((near[0], NEXT_STEP) if near else (FIRST_RATE, FIRST_STEP)))
            if not self.runs.has_chance:
                break
        flats = [self.run(policy, seed, one.rate).flat for seed, one in found.items()]
        figures = {limit.name: fmean(flat[limit.figure] for flat in flats) for limit in self.limits}
        rejected = {seed: flat["rejected"] for seed, flat in zip(found, flats, strict=True)}
        return HighestRate(policy=policy.name, found=found, figures=figures, rejected=rejected)

    def _highest(self, policy: NamedPolicy, seed: int, rate: float, step: float) -> SeedRate:
        low = high = rate
        if self.kept(policy, seed, rate):
            while self.kept(policy, seed, high):
                self._check_burst(policy, seed, high)
                low, high = high, high * step
        else:
            while not self.kept(policy, seed, low):
                self._check_idle(policy, seed, low)
                low, high = low / step, low
        return self._settled(policy, seed, _turn(lambda at: self.kept(policy, seed, at), low, high)[0])

    def _settled(self, policy: NamedPolicy, seed: int, turn: float) -> SeedRate:
        """The highest rate, near one that keeps the limits while one just above it does not.

        Percentiles of few requests jump, so limits may hold and break alternately as the rate rises. The rates around
        are split into lower and higher ones with the fewest lower ones that break a limit and higher ones that keep
        all; the result is the last of the lower ones that keeps them. Raises NoRateError where all rates beyond some
        keep them, or none below some does.
        """
        below, above = REACH, REACH
        while True:
            rates = [turn * AROUND**step for step in range(-below, above + 1)]
            kept = [self.kept(policy, seed, rate) for rate in rates]
            wrong = [kept[:split].count(False) + kept[split:].count(True) for split in range(len(kept) + 1)]
            split = min(range(len(wrong)), key=lambda at: (wrong[at], abs(at - below - 1)))
            lower = [rate for rate, holds in zip(rates[:split], kept, strict=False) if holds]
            if split > len(kept) - 2:
                if kept[-1]:
                    self._check_burst(policy, seed, rates[-1])
                above += REACH
            elif split < 2 or not lower:
                if not kept[0]:
                    self._check_idle(policy, seed, rates[0])
                below += REACH
            else:
                break
        broken = rates[kept.index(False)]
        last = max(rate for rate, holds in zip(rates, kept, strict=True) if holds)
        return SeedRate(rate=lower[-1], broken_from=min(broken, last), kept_up_to=last)

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

    def crossings(self, policies: Sequence[NamedPolicy], rates: Sequence[float]) -> Iterator[Crossing]:
        """Where the policy with the least time in the system changes, at two rising rates or more.

        A policy counts as fastest until another one is surely faster, or, at the highest rate, faster on average.
        """
        best, since = self.quickest(policies, rates[0]), rates[0]  # the last rate at which it was the fastest
        ahead = list(reversed(rates[1:]))
        while ahead:
            rate, other = ahead[-1], self.quickest(policies, ahead[-1])
            if other is best or (len(ahead) > 1 and not self._less(best, other, rate).low > 0):
                since = rate if other is best else since
                ahead.pop()
                continue
            found = self._crossing(best, other, (since, rate), rates)
            third = self.quickest(policies, found.rate)
            between = since * (1 + PRECISION) < found.rate < rate / (1 + PRECISION)
            if between and third not in (best, other) and self._less(best, third, found.rate).low > 0:
                ahead.append(found.rate)
                continue
            yield found
            best, since = other, ahead.pop()

    def quickest(self, policies: Sequence[NamedPolicy], rate: float) -> NamedPolicy:
        """The policy with the least time in the system at a rate, on average over seeds."""
        if len(policies) == 1:  # no run is needed to say so
            return policies[0]
        return min(policies, key=lambda policy: fmean(self.seconds(policy, seed, rate) for seed in self._seeds()))

    def _seeds(self) -> Sequence[int]:
        return self.runs.seeds if self.runs.has_chance else self.runs.seeds[:1]

    def _less(self, first: NamedPolicy, last: NamedPolicy, rate: float) -> Interval:
        """The difference of two policies' times in the system, at the same seeds."""
        return interval_or_point(
            [self.seconds(first, seed, rate) - self.seconds(last, seed, rate) for seed in self._seeds()]
        )

    def _crossing(
        self, below: NamedPolicy, above: NamedPolicy, between: tuple[float, float], rates: Sequence[float]
    ) -> Crossing:
        """Where the mean difference is 0, and the rates around it at which its 95% interval contains 0."""
        _, rate = _turn(lambda at: self._less(below, above, at).mean <= 0, *between)

        def unsure(at: float) -> bool:
            found = self._less(below, above, at)
            return found.low <= 0 <= found.high

        lower = next((at for at in reversed(rates) if at < rate and self._less(below, above, at).high < 0), None)
        upper = next((at for at in rates if at >= rate and self._less(below, above, at).low > 0), None)
        return Crossing(
            below=below.name,
            above=above.name,
            rate=rate,
            low=None if lower is None else _turn(lambda at: not unsure(at), lower, rate)[0] if unsure(rate) else rate,
            high=None if upper is None else _turn(unsure, rate, upper)[1] if unsure(rate) else rate,
        )


def _turn(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Two rates within `PRECISION`: it holds at the lower one, as at `low`, and not at the higher one."""
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


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
    """The highest rate of arrivals at which each policy keeps all limits, and rates at which their order changes.

    All policies get the same requests at a seed, scaled to a rate. Limits may also break below the rate found, if a
    figure does not rise with the rate. The order is by mean time in the system, from a 64th of the highest rate on.

    Args:
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        policies: as `compare` takes them; None: a representative set.
        workload: a file of requests, or a generator's text, without a rate of its own.
        cluster: a TOML file, or a device of the sheet.
        limits: as "p99_ttft < 1, p99_tpot < 0.03": mean, p50, p90, p95 or p99 of ttft, tpot, itl, e2e or queue, in
            seconds; with `slo` also "slo_share > 0.9".
        options: see `FindRatesOptions`; `start` may be "prefill" only.

    Raises:
        ValueError: a bad argument, row of the workload, cluster or policy, in one line; limits that hold at no rate, or
            at every one.
        CostRangeError: seconds unknown to the cost.
        PolicyError: a policy that broke the contract.
        KeyboardInterrupt: earlier results are not kept.
    """
    asked = checked(FindRatesOptions, options | {"workload": workload, "cluster": cluster, "limits": limits})
    wanted = service_limits(limits, argument="limits")
    if asked.rate is not None:
        check_within("`rate`", asked.rate, "[1e-9, 1e9]")
    setting = serving_setting(recording, workload, cluster, asked)
    check_rates(setting, asked, wanted)
    tables = setting.tables(setting.replay.seed)
    named = policies_asked(policies, asked.chains, tables, most=MOST_CELLS)
    check_policies(setting, named, tables)
    first = setting.opened(FIRST_RATE, setting.replay.seed)
    setting.check_classes(first)
    try_policies(setting, named, tables, first)
    with held_interrupts() as interrupts, Progress("finding rates", len(named), unit="policies") as progress:
        partial = policies is None and asked.chains is None
        runs = LoadRuns(setting, tables, interrupts, progress, partial=partial)
        search = _Search(runs=runs, limits=wanted)
        rows, without = _rows(search, named)
        bear = [policy for policy in named if policy.name in {row.policy for row in rows}]
        high = max(one.rate for row in rows for one in row.found.values())
        rates = [high * share for share in CROSSINGS]
        quickest = search.quickest(bear, rates[0]).name
        crossings = tuple(search.crossings(bear, rates))
        highest = {(row.policy, *one) for row in rows for one in row.by_seed.items()}
        sustained = [run for key, run in search.made.items() if key in highest]
        doubts = [EMPTY_AT_FIRST] * bool(short_of(sustained)) + [UNRANGED] * bool(setting.ends())
    return HighestRates(
        limits=wanted,
        rows=tuple(sorted(rows, key=lambda row: row.rate.mean, reverse=True)),
        looked_at=(rates[0], high),
        quickest=quickest,
        crossings=crossings,
        asked=asked.rate,
        promised=setting.promised,
        meta=meta_of(setting),
        remarks=tuple(dict.fromkeys((*runs.remarks(sustained), *doubts, *without, *runs.left_out))),
    )


def rate_of(setting: ServingSetting, policy: NamedPolicy, limits: Sequence[Limit]) -> tuple[HighestRate, list[str]]:
    """(the highest rate of one policy, remarks on its runs there); raises NoRateError, and as `find_rates`."""
    with held_interrupts() as interrupts, Progress("finding rates", 1, unit="policies") as progress:
        tables = setting.tables(setting.replay.seed)
        runs = LoadRuns(setting, tables, interrupts, progress)
        search = _Search(runs=runs, limits=limits)
        found = search.highest(policy)
        return found, runs.remarks([search.run(policy, *one) for one in found.by_seed.items()])


def _rows(search: _Search, policies: Sequence[NamedPolicy]) -> tuple[list[HighestRate], list[str]]:
    """(the rates found, policies left out and why); raises the first reason if there is none at all.

    A policy is left out that has no rate, or rejects requests which others serve: its figures are of fewer requests.
    """
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
    without = [str(reason).removeprefix("`limits` ") for reason in reasons]
    if any(limit.figure == SHARE for limit in search.limits):  # a rejected request has missed its promise
        return rows, without
    kept = rejecting_fewest(rows, lambda row: row.rejected)
    fewest = fmean(kept[0].rejected.values())
    without += [
        f"{row.policy} is left out: it rejects {fmean(row.rejected.values()):g} requests a run, others {fewest:g}"
        for row in rows
        if not reject_alike(row.rejected, kept[0].rejected)
    ]
    return kept, without


def check_rates(setting: ServingSetting, asked: LoadOptions, limits: Sequence[Limit]) -> None:
    """Raise ArgumentError for options that are not used to find rates."""
    given = _given(setting.workload)
    if given is not None and (given.kind == CLOSED or "rate" in given.options):
        rule = "must have times of arrival, and leave their rate open, where rates are found"
        raise ArgumentError(f"`workload` {rule}, got {setting.workload!r}")
    _check_drawn(setting, FIRST_RATE)
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


def _check_drawn(setting: ServingSetting, rate: float) -> None:
    """Raise ArgumentError if a generator that ends by its seconds alone has far too many requests at a rate."""
    given = _given(setting.workload)
    if given is None or {"requests", "sessions"} & given.options.keys():
        return
    num_expected = rate * (given.number("seconds") or 0.0)
    most = MOST_DRAWN if setting.changes.limit is None else MOST_REQUESTS
    if num_expected > most:
        rule = f"must give a number of requests too: at {three_digits(rate)} arrivals/s its seconds hold"
        raise ArgumentError(f"`workload` {rule} {num_expected:,.0f}, more than {most:,}, got {setting.workload!r}")


def _given(workload: str) -> Given | None:
    """The options of a generator's text; None for a file."""
    kinds = {**KINDS, **SESSION_KINDS}
    return Given(workload, kinds) if workload.partition(":")[0] in kinds else None
