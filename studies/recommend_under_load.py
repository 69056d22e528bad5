"""From a recording, a workload and a service level to a decision: which draft length to set, or none, at this rate.

Candidates are the target alone, every K, K by running requests as `recommend` finds it, and policies that are named.
All serve the same arrivals. The choice is made on one half of the recorded requests: of those that keep the limits, the
one with the least mean time in the system. Its figures are measured on the other half. Letters: K tokens drafted in a
round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError
from ..base.terminal import Progress, held_interrupts
from ..decoding.steps import PolicyError
from ..policies.about import members_run_by
from ..policies.chain_text import BASELINE
from ..reports.cost_range import gain, gain_range
from ..reports.ledger import BARE, Standing
from ..reports.limits import SHARE, Limit, service_limits
from ..reports.rates import Crossing, HighestRates, three_digits
from ..reports.recommendation import Recommendation, replayed_candidates
from ..reports.recommendation_under_load import (
    IN_SYSTEM,
    HighestKept,
    PaysUpTo,
    RecommendationUnderLoad,
    ServedCandidate,
    missed,
    served_lines,
)
from ..reports.serving_tables import SeedRow, short_of
from ..reports.tables import Printed
from ..sim.cost.base import CostRangeError
from ..sim.cost.roofline import device_sheet
from ..sim.serving.cluster_file import MemoryRuleError, read_cluster_file
from ..sim.serving.replica import Role
from ..traces.recording import Recording
from .compare import built
from .engine_settings import ENGINES, EngineSettings
from .load import LoadRuns, check_policies, meta_of
from .observed_runs import replayable, replayer_of
from .options import (
    FindRatesOptions,
    RecommendOptions,
    RecommendUnderLoadOptions,
    ReplayOptions,
    ServingOptions,
    checked,
    shared,
    takes,
)
from .rates import NoRateError, find_rates
from .recommend import (
    MEASURE,
    check_lengths,
    drafter_of,
    halves_of,
    ledger_of,
    lengths_of,
    limited_by,
    one_k_because,
    pasted,
    present_of,
    recommend,
    sampled_of,
    schedule_of,
    version_of,
)
from .serving import ServingSetting, notes_on, policies_kept, serving_setting
from .setting import NamedPolicy, named_policies, opened_recording
from .validate_observed import held_against

UNDER_LOAD = "recommend_under_load"  # the call, in a ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The question: options and both halves."""

    asked: RecommendUnderLoadOptions
    limits: tuple[Limit, ...]
    recording: Recording
    drafter: str
    present: int | None  # K
    halves: tuple[Recording, Recording]  # (to choose on, to report on)
    settings: tuple[ServingSetting, ServingSetting]

    @property
    def replayed_at(self) -> Mapping[str, Any] | None:
        """Options of the cost of replays without arrivals: as given, or the cluster's devices; None: these differ."""
        if self.asked.cost is not None:
            return {"cost": str(self.asked.cost)}
        cluster = str(self.asked.cluster)
        return {"cost": cluster} if cluster in device_sheet() else read_cluster_file(Path(cluster)).one_cost(cluster)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tried K, except 0."""
        return lengths_of(self.recording, self.drafter, self.asked.most, self.present)

    def chain(self, length: int) -> str:
        """The policy of a K."""
        return f"{self.drafter}:{length}/{self.recording.about.target}" if length else BASELINE

    def highest(self, policies: Sequence[str]) -> HighestRates:
        """The highest rates on the requests to report on; raises as `find_rates`."""
        return find_rates(self.halves[1], list(policies), **vars(serving_options(self.asked)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Runs of the candidates on one half, at one cost."""

    rows: Mapping[str, SeedRow]
    lost: Mapping[str, tuple[Standing, str]]  # the status of policies without a row
    notes: Sequence[str]
    is_one_draw: bool  # whether chance has a part in them, and there is one seed: how large a part is unknown

    def feasible(self, limits: Sequence[Limit]) -> list[str]:
        """Policies that keep all limits, the least time in the system first."""
        kept = [name for name, row in self.rows.items() if not missed(row, limits)]
        return sorted(kept, key=lambda name: self.rows[name].mean(IN_SYSTEM) or 0.0)


@takes(RecommendUnderLoadOptions)
def recommend_under_load(
    recording: Recording | str | Path | None = None,
    policies: Sequence[str] = (),
    *,
    workload: str | Path,
    cluster: str | Path,
    **options: Any,  # noqa: ANN401 - see `RecommendUnderLoadOptions`
) -> RecommendationUnderLoad:
    """Which draft length serves a workload fastest and keeps a service level, with its uncertainty, and what to paste.

    Args:
        recording: that acceptance is drawn from, request by request; None: the default one.
        policies: further candidates, as `compare` takes them.
        workload: a file of requests, or a generator's text, which leaves its rate to `rate`.
        cluster: a TOML file, or a device of the sheet.
        options: see `RecommendUnderLoadOptions`.

    Raises:
        ValueError: a bad argument, in one line; a recording without a drafter.
        KeyboardInterrupt: earlier runs are not kept.
    """
    asked = checked(RecommendUnderLoadOptions, {**options, "workload": workload, "cluster": cluster})
    question = _question(recording, asked)
    named = named_policies(list(dict.fromkeys([*map(question.chain, (0, *question.lengths)), *policies])))
    reported, halves = question.settings[1], question.halves
    version_of(asked, reported.replay)  # raises before the long runs
    check_policies(reported, named, reported.tables(asked.seed))
    of_plain = _highest(question, BASELINE) if question.limits else None  # before the long runs: it refuses bad options
    observed = _observed(question)
    by_batch = _by_batch(question)
    schedules = {question.chain(length): {1: length} for length in (0, *question.lengths)}
    if by_batch is not None and len(schedule := schedule_of(by_batch.batches)) > 1:
        table = "/".join(f"{start}:{length}" for start, length in schedule.items())
        named += named_policies([f"off-under-load,table={table},draft={question.drafter}"])
        if not one_k_because(asked, reported.replay, question.drafter):
            schedules[named[-1].name] = schedule
    first, other, ends = _all_served(question, named)
    ranked = first.feasible(question.limits)
    choice = _chosen(question, ranked, first, other, ends)
    slowest = ends[-1].rows.get(choice.policy) if ends and choice.policy is not None else None
    candidates = _candidates(question, named, first, other, ends, of_plain)
    setting, advice = _setting(question, choice, ranked, schedules)
    lines = served_lines(candidates)
    if by_batch is not None:
        lines += replayed_candidates(by_batch.batches, by_batch.compared, first=len(lines) + 1)
    return RecommendationUnderLoad(
        meta=meta_of(reported) | {"requests_tuned_on": len(halves[0].requests), "requests": len(halves[1].requests)},
        limits=question.limits,
        rate=asked.rate,
        candidates=candidates,
        chosen=choice.policy,
        tied=choice.tied,
        open_because=choice.open_because,
        at_slow_end="" if slowest is None else missed(slowest, question.limits),
        present=None if question.present is None else question.chain(question.present),
        observed=observed,
        crossing=_crossing(question, choice.policy, candidates),
        setting=setting,
        advice=advice,
        by_batch=by_batch,
        remarks=tuple(dict.fromkeys([*other.notes, *_unasked(question, by_batch)])),
        ledger=ledger_of(UNDER_LOAD, recording, {**vars(asked), "replayed_at": question.replayed_at}, lines),
    )


def _question(recording: Recording | str | Path | None, asked: RecommendUnderLoadOptions) -> _Question:
    """The question; raises ArgumentError for bad options."""
    check_lengths(asked)
    limits = _limits(asked.slo)
    opened = opened_recording(recording)
    drafter = drafter_of(opened, asked.drafter)
    present = present_of(opened, drafter, asked.present)
    if asked.observed is not None and present is None:
        raise ArgumentError(f"`observed` goes with `present`, the K that was set then, got {asked.observed} alone")
    first, second = halves_of(opened, asked)
    serving = serving_options(asked)
    settings = (
        serving_setting(first, asked.workload, asked.cluster, serving),
        serving_setting(second, asked.workload, asked.cluster, serving),
    )
    if own := policies_kept(settings[0]):
        raise ArgumentError(
            f"`cluster` must leave the policy of every replica open, for K to be chosen there, got {own}"
        )
    return _Question(
        asked=asked,
        limits=limits,
        recording=opened,
        drafter=drafter,
        present=present,
        halves=(first, second),
        settings=settings,
    )


def _limits(slo: str | None) -> tuple[Limit, ...]:
    """The limits to keep; raises ArgumentError, which names `slo`."""
    found = () if slo is None else service_limits(slo, argument="slo")
    if goodput := next((limit for limit in found if limit.figure == SHARE), None):
        raise ArgumentError(f"`slo` must name latencies here, as in 'p99_ttft < 1', got {goodput}")
    return found


def serving_options(asked: RecommendUnderLoadOptions) -> FindRatesOptions:
    """The options of every run, as those of `find_rates`; without `slo`, as there are no promises."""
    return FindRatesOptions(**shared(FindRatesOptions, asked, but=["slo"]), limits=asked.slo or "")


def _observed(question: _Question) -> Printed | None:
    """The present setting, simulated on the requests of an observed run and compared with it."""
    asked = question.asked
    if asked.observed is None:
        return None
    run = replayable(asked.observed, with_rounds=False)
    options = ServingOptions(**shared(ReplayOptions, asked))
    setting = serving_setting(question.recording, "observed", asked.cluster, options)
    return held_against(run, replayer_of(setting, question.chain(question.present or 0)))


def _by_batch(question: _Question) -> Recommendation | None:
    """K by running requests, if the cluster has one cost: its devices', or the given one."""
    replayed_at = question.replayed_at
    if replayed_at is None:
        return None
    return recommend(question.recording, **{**shared(RecommendOptions, question.asked), **replayed_at})


def _unasked(question: _Question, by_batch: Recommendation | None) -> list[str]:
    """Remarks on what is missing."""
    found = limited_by(question.recording, question.drafter, question.asked.most)
    found += sampled_of(question.recording, question.asked.sample)
    if by_batch is None:
        found.append(
            "K by running requests is no candidate: replicas differ in device, split or engine, or have a cost of "
            "their own; give `cost`"
        )
    if not question.limits:
        found.append(
            "give `slo` for the highest rate that each keeps, and the rate from which speculation stops paying"
        )
    return found


def _all_served(question: _Question, policies: Sequence[NamedPolicy]) -> tuple[_Served, _Served, tuple[_Served, ...]]:
    """Runs on the half to choose on, on the other one, and there at the ends of the cost's range."""
    first, other = question.settings
    once = replace(other, replay=replace(other.replay, seeds=1))
    settings = [first, other, *once.ends()]
    with held_interrupts() as interrupts, Progress("serving", len(settings) * len(policies), unit="rows") as progress:
        found = []
        for setting in settings:
            tables = setting.tables(setting.replay.seed)
            runs = LoadRuns(setting, tables, interrupts, progress)
            found.append(_served(runs, policies, question.asked.rate))
    return found[0], found[1], tuple(found[2:])


def _served(runs: LoadRuns, policies: Sequence[NamedPolicy], rate: float | None) -> _Served:
    """Raises KeyboardInterrupt."""
    rows, lost = dict[str, SeedRow](), dict[str, tuple[Standing, str]]()
    for policy in policies:
        try:
            rows[policy.name] = runs.row(policy, rate)
        except CostRangeError as error:
            lost[policy.name] = Standing.refused, str(error)
        except PolicyError as error:
            lost[policy.name] = Standing.failed, str(error)
        except MemoryRuleError as error:
            lost[policy.name] = Standing.infeasible, str(error)
    served = [run for row in rows.values() for run in row.runs]
    return _Served(
        rows=rows,
        lost=lost,
        notes=[*notes_on(runs.setting), *(runs.notes if rows else ()), *short_of(served)],
        is_one_draw=runs.has_chance and runs.setting.replay.seeds == 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The choice, and why it may not be set."""

    policy: str | None
    tied: tuple[str, ...] = ()  # others that cannot be told apart from it
    open_because: str = ""
    by_cost: bool = False


def _chosen(
    question: _Question, ranked: Sequence[str], first: _Served, other: _Served, ends: Sequence[_Served]
) -> _Choice:
    """The first of the ranked, if it holds on the other half, and differs from the target alone."""
    if not ranked:
        return _Choice(policy=None)
    best = ranked[0]
    gains = {name: gain(first.rows[best], first.rows[name]) for name in ranked[1:]}
    tied = tuple(name for name, over in gains.items() if over is None or over.low <= 1 or first.is_one_draw)
    standing, why = _standing(question.limits, best, first, other)
    if standing is not Standing.feasible:
        return _Choice(policy=best, tied=tied, open_because=f"on the other half of the requests {why}")
    if best == BASELINE or BASELINE in tied:
        drafting = [name for name in tied if name != BASELINE] if best == BASELINE else [best]
        if drafting:
            why = f"these seeds do not tell {drafting[0]} from {BASELINE}: more requests or --seeds would"
            return _Choice(policy=best, tied=tied, open_because=why)
    if any(replica.cost.bound_only for setting in question.settings for replica in setting.cluster.replicas):
        return _Choice(policy=best, tied=tied, open_because=BARE, by_cost=True)
    rivals = [BASELINE] if best != BASELINE else ranked[1:]
    for name in rivals:
        # Of equal ones, and of those without a run, the best one counts as the faster.
        is_faster = [_seconds(end.rows.get(name)) < _seconds(end.rows.get(best)) for end in (other, *ends)]
        if all(is_faster):
            why = f"on the other half of the requests {name} is faster than {best}"
            return _Choice(policy=best, tied=tied, open_because=why)
        if any(is_faster):
            why = f"the cost does not tell {best} from {name}"
            return _Choice(policy=best, tied=tied, open_because=why, by_cost=True)
    return _Choice(policy=best, tied=tied)


def _seconds(row: SeedRow | None) -> float:
    found = None if row is None else row.mean(IN_SYSTEM)
    return inf if found is None else found


def _candidates(
    question: _Question,
    policies: Sequence[NamedPolicy],
    first: _Served,
    other: _Served,
    ends: Sequence[_Served],
    of_plain: HighestKept | None,
) -> tuple[ServedCandidate, ...]:
    """Every policy, the least time in the system first; those without a run last.

    `of_plain` is the highest rate of the target alone, None without limits.
    """
    plain, setting = other.rows.get(BASELINE), question.settings[1]
    tables = setting.tables(setting.replay.seed)
    found = []
    for policy in policies:
        row = other.rows.get(policy.name)
        over = None if row is None or plain is None else gain(row, plain)
        at_ends = [end.rows for end in ends if policy.name in end.rows and BASELINE in end.rows]
        standing, reason = _standing(question.limits, policy.name, first, other)
        runs = members_run_by(built(tables, policy, lossless=setting.replay.lossless))
        found.append(
            ServedCandidate(
                policy=policy.name,
                standing=standing,
                reason=reason,
                row=row,
                over_plain=over,
                range_of_cost=(
                    None
                    if row is None or plain is None or policy.name == BASELINE
                    else gain_range(_at_ends(row, policy.name, at_ends), _at_ends(plain, BASELINE, at_ends))
                ),
                kv_tokens=_kv_tokens(setting, runs),
                highest=(
                    None
                    if row is None or of_plain is None
                    else (of_plain if policy.name == BASELINE else _highest(question, policy.name))
                ),
            )
        )
    return tuple(sorted(found, key=lambda one: _seconds(one.row)))


def _at_ends(row: SeedRow, policy: str, ends: Sequence[Mapping[str, SeedRow]]) -> SeedRow:
    """A policy's row with its runs at the ends of the cost's range, of which there is one seed."""
    return replace(row, ends=tuple(rows[policy].runs[0] for rows in ends))


def _standing(limits: Sequence[Limit], policy: str, first: _Served, other: _Served) -> tuple[Standing, str]:
    """The standing of a policy: feasible if it keeps the limits on both halves."""
    for half, where in ((other, ""), (first, "on the requests that the choice was made on ")):
        if policy in half.lost:
            return half.lost[policy]
        if why := missed(half.rows[policy], limits):
            return Standing.infeasible, where + why
    return Standing.feasible, f"keeps {', '.join(map(str, limits))}" if limits else "serves every request"


def _kv_tokens(setting: ServingSetting, runs: frozenset[str] | None) -> int | None:
    """Tokens that the target has room for in the first replica that decodes; None: memory unknown, or nothing fits."""
    target = setting.recording.about.target
    try:
        decoding = next(one for one in setting.cluster.replicas if one.role != Role.prefill)
        memory = decoding.running(runs).memory
    except MemoryRuleError:
        return None
    return next(
        (
            one.kv.num_tokens
            for device in memory
            for one in device.members
            if one.name == target and one.shape is not None
        ),
        None,
    )


def _highest(question: _Question, policy: str) -> HighestKept:
    try:
        return HighestKept(rate=question.highest([policy]).rows[0].rate)
    except NoRateError as error:
        reason = str(error).removeprefix("`limits` ")
        return HighestKept(rate=None, reason=reason, at_any="holds at every rate" in reason)


def _crossing(question: _Question, chosen: str | None, candidates: Sequence[ServedCandidate]) -> PaysUpTo | None:
    """Up to which rate the choice, else the best one that drafts, is faster than the target alone."""
    drafting = [one.policy for one in candidates if one.policy != BASELINE and one.row is not None]
    best = chosen if chosen not in (None, BASELINE) else next(iter(drafting), None)
    if not question.limits or best is None:
        return None
    try:
        found = question.highest([BASELINE, best])
    except NoRateError as error:
        reason = str(error).removeprefix("`limits` ")
        return PaysUpTo(words=f"up to which rate {best} pays is not known: {reason}", rate=None)
    low, high = map(three_digits, found.looked_at)
    if len(found.rows) < 2:
        return PaysUpTo(words=f"only {found.best} keeps the limits at any rate", rate=None)
    if not found.crossings:
        where = "every" if found.quickest == best else "no"
        return PaysUpTo(words=f"{best} pays at {where} rate looked at, {low} to {high} arrivals/s", rate=None)
    last, turns = found.crossings[-1], " and ".join(_turn(best, one) for one in found.crossings)
    if last.above == best:
        return PaysUpTo(words=f"{best} {turns}, up to {high}, the highest rate looked at", rate=None)
    return PaysUpTo(words=f"{best} {turns}", rate=last.rate)


def _turn(best: str, crossing: Crossing) -> str:
    """Whether it starts or stops paying there, at which rate, and how sure that is."""
    ends = ", which may be chance"
    if crossing.low is not None and crossing.high is not None:
        ends = f" ({three_digits(crossing.low)} to {three_digits(crossing.high)})" * (crossing.high > crossing.low)
    return f"{'starts' if crossing.above == best else 'stops'} paying at {three_digits(crossing.rate)} arrivals/s{ends}"


def _setting(
    question: _Question, choice: _Choice, ranked: Sequence[str], schedules: Mapping[str, Mapping[int, int]]
) -> tuple[EngineSettings | None, tuple[str, ...]]:
    """(what to paste, what to do if no setting is named)."""
    if choice.policy is None or choice.open_because:
        return None, (MEASURE,) if choice.by_cost else ()
    best = next((name for name in ranked if name in schedules), None)
    served = question.settings[1]
    engine = ENGINES[version_of(question.asked, served.replay)[0]].title
    if best is None:
        return None, (f"{engine} does not run {choice.policy}, and no K keeps the limits",)
    notes = () if best == choice.policy else (f"{engine} does not run {choice.policy}; the best that it does: {best}",)
    split = max(replica.tensor_parallel for replica in served.cluster.replicas)
    setting, refusal = pasted(schedules[best], question.asked, served.replay, question.drafter, split)
    return setting, (*notes, *([] if refusal is None else [refusal]))
