"""Policies side by side on one recording, at every seed that changes a run, and chains with windows of a range.

Also the further parts of a comparison: figures by tag, regret against oracles, and figures of another device.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, check_each_once, counted, innermost, is_foreign
from ..base.terminal import Progress
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.steps import PolicyError
from ..policies.about import about_of, check_tags, may_work_ahead
from ..policies.chain_text import BASELINE, chains_in
from ..policies.fixed import Chain, Plain
from ..policies.oracles import OracleChain, OracleWindow
from ..reports.comparison import Comparison, DeviceRange, Sweep
from ..reports.regret import REFERENCE, Regret, regret_of
from ..reports.resampled import RequestShares, Resampled
from ..reports.seconds_by_tag import ByTag, TagShares, tag_shares
from ..reports.side_by_side import SideBySide, has_chance
from ..reports.summary import Summary, summarise_run
from ..reports.tables import Printed
from ..reports.waterfall import Spent, Why, waterfall_of
from ..runs.log import RunLog, new_folder, write_run_log
from ..sim.cost.base import CostModel, CostRangeError
from ..sim.cost.what_if import MappedBy
from ..sim.replay_tables import ReplayTables, check_observed
from ..sim.simulate import Scenario, simulate
from ..traces.opening import by_form
from ..traces.recording import Recording, sessions_of
from ..traces.rounds.check import token_s
from ..traces.rounds.recording import TIMED
from ..traces.rounds.rounds import TARGET_ALONE
from .options import ComparisonOptions, SweepOptions, checked, takes
from .setting import NamedPolicy, PoliciesGiven, Scenarios, Setting, named_policies, named_policy, setting_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRuns:
    """The policies' runs, by name."""

    asked: Sequence[str]  # names of the policies, in the order asked
    # at least one run, the first seed's first; without rejected policies
    summaries: Mapping[str, Sequence[Summary]]
    shares: Mapping[str, TagShares]  # the run at the first seed by tag
    by_request: Mapping[str, Sequence[RequestShares]]  # as `summaries`
    spent: Mapping[str, Spent]  # by the run at the first seed
    # policies whose seconds are unknown to the cost, or that broke the contract, and why
    refused: Mapping[str, CostRangeError | PolicyError]
    sessions: Mapping[str, str] = field(default_factory=dict)  # by request, of requests with a session
    beyond: Sequence[str] = ()  # remarks on drafts longer than any of the log

    @property
    def known(self) -> list[str]:
        """Names of the requested policies without rejected ones; raises the first rejection's error if none is left."""
        known = [name for name in self.asked if name in self.summaries]
        if not known:
            raise next(iter(self.refused.values()))
        return known

    def side_by_side(self, meta: Mapping[str, Any], cost: CostModel, ends: tuple[SideBySide, ...] = ()) -> SideBySide:
        """Policies that were not rejected, at all their seeds; raises the first rejection's error if there is none.

        `meta` describes the scenario; `cost` is the one they ran under, which has more notes after the runs, and `ends`
        their runs at the ends of its range.
        """
        left_out = [f"{name} is left out: {error}" for name, error in self.refused.items() if name in self.asked]
        if BASELINE in self.refused and BASELINE not in self.asked:
            left_out.append(f"no speed-up is known: {self.refused[BASELINE]}")
        rows = [self.summaries[name] for name in self.known]
        remarks = [*meta.get("remarks", ()), *self.beyond]
        return SideBySide(
            meta={**meta, "cost_notes": list(cost.notes()), "left_out": left_out, "remarks": remarks},
            baseline=self.summaries[BASELINE][0] if BASELINE in self.summaries else None,
            rows=tuple(row[0] for row in rows),
            repeats={name: tuple(row[1:]) for name, row in self.summaries.items()},
            resampled=Resampled(
                {name: self.by_request[name] for name in self.summaries},
                sessions=self.sessions,
                fixed_mix=bool(meta.get("fixed_mix")),
            ),
            ends=ends,
        )


def run_policies(
    scenarios: Scenarios,
    policies: Sequence[NamedPolicy],
    *,
    lossless: bool,
    partial: bool = False,
    keep: bool = False,
    log: Path | None = None,
    within: Progress | None = None,
) -> PolicyRuns:
    """Run every policy, and the target alone if it is not among them; that one may be rejected then.

    Args:
        scenarios: by seed.
        policies: a bad one raises before any run.
        lossless: whether only lossless policies are allowed.
        partial: whether policies may be rejected too.
        keep: whether a policy that breaks the contract in a run is one of the rejected, so that others' runs are kept.
        log: new folder for run logs of `policies` at the first seed, or None.
        within: the stage that these policies are a part of, which shows each; None: a stage of their own.

    Raises:
        ValueError: a policy that may not run on the recording.
        CostRangeError: seconds unknown to the cost, of a policy that may not be rejected.
        PolicyError: a policy broke the contract, without `keep`.
    """
    for policy in policies:
        built(scenarios.first.tables, policy, lossless=lossless)
    found, refused = dict[str, _Found](), dict[str, CostRangeError | PolicyError]()
    asked = [policy.name for policy in policies]
    everyone = list(policies) if BASELINE in asked else [*policies, named_policy(BASELINE)]
    with nullcontext() if log is None else new_folder(log) as folder, _stage(everyone, within) as progress:
        done_before = progress.done
        for index, policy in enumerate(everyone):
            progress.advance_to(done_before + index, policy.name)
            is_asked = policy.name in asked
            path = folder / f"{index:02d}-{policy.file_name}" if folder is not None and is_asked else None
            kept = _Found(scenarios)
            try:
                while (scenario := kept.coming()) is not None:
                    progress.note(f"{policy.name}{kept.place}")
                    # Built again: what a policy learns is for its run only.
                    made = built(scenario.tables, policy, lossless=lossless)
                    ran = simulate(scenario, made, policy.name)
                    if path is not None and not kept.runs:
                        write_run_log(ran, path)
                    kept.take(scenario, made, ran)
                    del made, ran  # both are long
            except (CostRangeError, PolicyError) as error:
                allowed = keep if isinstance(error, PolicyError) else partial or not is_asked
                if not allowed:
                    raise
                refused[policy.name] = error
            else:
                found[policy.name] = kept
        progress.advance_to(done_before + len(everyone))
    return PolicyRuns(
        asked=asked,
        summaries={name: [one.summary for one in each.runs] for name, each in found.items()},
        shares={name: each.by_tag for name, each in found.items()},
        by_request={name: [one.shares for one in each.runs] for name, each in found.items()},
        spent={name: each.spent for name, each in found.items()},
        refused=refused,
        sessions=sessions_of(scenarios.recording.requests),
        beyond=_beyond_log(scenarios.recording, {name: each.longest for name, each in found.items()}),
    )


class _Run:
    """What is kept of a run of `policy`, as built for it."""

    def __init__(self, scenario: Scenario, policy: Policy, log: RunLog) -> None:
        self.summary, self.shares = summarise_run(log), RequestShares.of(log)
        ours = not any(is_foreign(type(innermost(part))) for part in (policy, scenario.cost))
        self._tables, self._repeats = scenario.tables, log.repeats if ours else None

    def repeats(self, scenario: Scenario) -> bool:
        """Whether the run at another seed is known to be this one; foreign code may draw by itself."""
        return self._repeats is not None and scenario.tables is self._tables and self._repeats(scenario.seed)


class _Found:
    """What is kept of the runs of one policy, at every seed and order of requests that gives another one.

    Attributes:
        runs: the first seed's first.
        by_tag, spent, longest: of that one; `longest` has tokens of each member's longest draft, without members that
            drafted none.
    """

    by_tag: TagShares
    spent: Spent
    longest: Mapping[str, int]

    def __init__(self, scenarios: Scenarios) -> None:
        self._scenarios = scenarios
        self.runs: list[_Run] = []
        self._wanted, self._chance = 1, False

    @property
    def place(self) -> str:
        """Which run comes, in words; "" before the first."""
        return f", run {len(self.runs) + 1} of {self._wanted}" if self.runs else ""

    def coming(self) -> Scenario | None:
        """The scenario of the next run, None if there is none; one known to be an earlier one is not run again."""
        while len(self.runs) < self._wanted:
            scenario = self._scenarios.at(len(self.runs))
            same = next((one for one in self.runs if one.repeats(scenario)), None)
            if same is None:
                return scenario
            self.runs.append(same)
        return None

    def take(self, scenario: Scenario, policy: Policy, log: RunLog) -> None:
        """Keep a run; the first one says how many there may be."""
        self.runs.append(_Run(scenario, policy, log))
        first = self.runs[0]
        if len(self.runs) == 1:
            self.by_tag, self.spent, self.longest = tag_shares(log), Spent.of(log), _longest_drafts(log)
            self._chance = has_chance(first.summary, shifted=bool(self._scenarios.shifts))
            seeds = self._scenarios.num_seeds if self._chance else 1
            self._wanted = max(seeds, self._scenarios.num_orders)
        elif len(self.runs) == 2 and not self._chance and first.shares.is_like(self.runs[1].shares):
            self.runs, self._wanted = [first], 1  # another order changes nothing


def _longest_drafts(log: RunLog) -> dict[str, int]:
    """As of `_Found`."""
    steps = log.steps
    drafted = {name: steps["drafted"][steps["level"] == level] for level, name in enumerate(log.meta["members"])}
    return {name: int(found.max()) for name, found in drafted.items() if len(found)}


def _beyond_log(recording: Recording, longest: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Remarks on drafts longer than any of an imported log; `longest` has those of each policy, by member."""
    found, about = [], recording.about
    for name, logged in about.longest.items():
        most = about.drafted[name]
        if most < logged and max((drafts.get(name, 0) for drafts in longest.values()), default=0) == most:
            drawn = f"no draft of {name} in the recording is longer than {counted(most, 'token')}"
            found.append(f"{drawn}: windows of {most} or more do not differ")
        beyond = [policy for policy, drafts in longest.items() if drafts.get(name, 0) > logged]
        if beyond:
            found.append(
                f"{name} drafted {counted(logged, 'token')} at most in the log, which says little of more: "
                f"{', '.join(beyond)}"
            )
    return found


def _stage(policies: Sequence[NamedPolicy], within: Progress | None) -> AbstractContextManager[Progress]:
    # An oracle looks ahead at every step, and takes many times as long as the others together.
    alike = not any(policy.made_by in (OracleChain, OracleWindow) for policy in policies)
    return nullcontext(within) if within else Progress("replaying", len(policies), unit="policies", alike=alike)


def at_ends(
    scenarios: Scenarios, policies: Sequence[NamedPolicy], *, lossless: bool, within: Progress | None = None
) -> tuple[SideBySide, ...]:
    """The policies at the first seed, at both ends of the cost's range; () if unknown.

    `within` is as of `run_policies`.
    """
    once = replace(scenarios, num_seeds=1, num_orders=1, _made={})
    found = []
    for cost in scenarios.first.cost.ends():
        runs = run_policies(once.with_cost(cost), policies, lossless=lossless, partial=True, within=within)
        found.append(runs.side_by_side({}, cost))
    return tuple(found)


def built(tables: ReplayTables, policy: NamedPolicy, *, lossless: bool) -> Policy:
    """The policy, built for a run on a recording; raises ValueError if it may not run there."""
    made = policy.admitted(tables.pool, lossless=lossless)
    check_observed(made, policy.name, tables)
    recording = tables.trace
    tags = (request.tag for request in recording.requests)
    check_tags(made, policy.name, tags, f"recording {recording.about.name}")
    return made


MOST_CELLS = 1000


@takes(SweepOptions)
def sweep(
    recording: Recording | str | Path,
    chains: str | Sequence[str],
    **options: Any,  # noqa: ANN401 - see `SweepOptions`
) -> Sweep:
    """Compare chains with every window of a range: "draft:1..12/target", "draft:1..9:2/mid:4..8/target".

    `recording` is as `open_recording` returns it, or its path; `options` are those of `SweepOptions`, except `on` and
    `measured_on`.

    Raises:
        ValueError: a bad argument, in one line; no chain with ranges, or too many of them.
        CostRangeError: the seconds of all chains at one of the batches are unknown to the cost.
    """
    return swept(recording, chains, checked(SweepOptions, options))


def swept(
    recording: Recording | str | Path,
    chains: str | Sequence[str],
    asked: SweepOptions,
    *,
    within: Progress | None = None,
) -> Sweep:
    """As `sweep`, as a part of the stage `within`, which shows each policy; None: a stage of its own."""
    batches = asked.batches
    check_each_once("batches", batches)
    if asked.on is not None:
        raise ArgumentError(
            "`on` does not apply to a sweep, which shows one speed-up a cell and not the range of three"
        )
    setting = setting_of(recording, asked, batch=batches[0])
    scenarios = setting.scenarios()
    texts = [chains] if isinstance(chains, str) else chains
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"`chains` must be one text or several, got {chains!r}")
    found = chains_in(texts, scenarios.first.tables.pool, most=MOST_CELLS // len(batches))
    policies = named_policies([str(chain) for chain in found])
    meta = setting.meta(scenarios.first)
    each = num_replayed(setting, len(policies) + all(policy.name != BASELINE for policy in policies))
    with nullcontext(within) if within else Progress("replaying", each * len(batches), unit="policies") as progress:
        done_before, comparisons = progress.done, dict[int, SideBySide]()
        for number, batch in enumerate(batches, 1):
            own, lossless = scenarios.with_batch(batch), setting.lossless
            try:
                runs = run_policies(own, policies, lossless=lossless, partial=True, within=progress)
                known = [policy for policy in policies if policy.name in runs.known]
                ends = at_ends(own, known, lossless=lossless, within=progress)
                comparisons[batch] = runs.side_by_side(meta, own.first.cost, ends)
            except CostRangeError as error:
                raise CostRangeError(f"batch {batch:,}: {error}") from error
            progress.advance_to(done_before + number * each)
    told = {
        "batch": list(batches),
        "remarks": list(
            dict.fromkeys(
                [*setting.remarks(*batches), *(each for one in comparisons.values() for each in one.meta["remarks"])]
            )
        ),
        "cost_notes": list(dict.fromkeys(note for one in comparisons.values() for note in one.meta["cost_notes"])),
        "left_out": [
            f"batch {batch:,}: {reason}" for batch, one in comparisons.items() for reason in one.meta["left_out"]
        ],
    }
    windows = {str(chain): dict(zip(chain.members, chain.windows, strict=False)) for chain in found}
    return Sweep(meta={**meta, **told}, chains=windows, comparisons=comparisons)


def num_replayed(setting: Setting, policies: int) -> int:
    """How many replays `policies` policies take, at the cost and at the ends of its range."""
    return policies * (1 + len(setting.priced().ends()))


def check_devices(devices: str | Mapping[str, str] | None, policies: Sequence[NamedPolicy], pool: Pool) -> None:
    """Raises ArgumentError for devices where no policy lets members run at the same time."""
    if devices is not None and not any(may_work_ahead(policy.build(pool)) for policy in policies):
        names = " nor ".join(policy.name for policy in policies)
        raise ArgumentError(f"`devices` is for policies that work ahead, such as pearl, got {devices!r} for {names}")


OUTER = (MappedBy.all, MappedBy.memory)


def with_oracles(policies: Sequence[NamedPolicy], pool: Pool) -> list[NamedPolicy]:
    """The policies to compare and the oracles that are not among them, with any options."""
    built = [policy.build(pool) for policy in policies]
    oracles = {"oracle-window": OracleWindow, REFERENCE: OracleChain}
    missing = [name for name, kind in oracles.items() if not any(isinstance(policy, kind) for policy in built)]
    return [*policies, *map(named_policy, missing)]


def oracles_of(policies: Mapping[str, Policy]) -> tuple[str, ...]:
    """Names of policies that see ahead, and so cannot be run."""
    abouts = {name: about_of(policy) for name, policy in policies.items()}
    return tuple(name for name, about in abouts.items() if about is not None and about.oracle)


def tags_of(runs: PolicyRuns) -> ByTag:
    """The runs at the first seed by tag."""
    return ByTag(baseline=runs.shares.get(BASELINE), policies={name: runs.shares[name] for name in runs.known})


def why_in(found: SideBySide, runs: PolicyRuns) -> Why:
    """Where each policy's gain at the first seed goes, the fastest first; raises the error of the target alone."""
    if BASELINE in runs.refused:
        raise runs.refused[BASELINE]
    alone = runs.spent[BASELINE]
    rows = [row for row in found.ranked() if row.policy != BASELINE]
    return Why(
        policies={
            row.policy: None if row.levels[-1].trees else waterfall_of(runs.spent[row.policy], alone) for row in rows
        }
    )


def regret_in(found: SideBySide, runs: PolicyRuns, policies: Mapping[str, Policy]) -> Regret:
    """What each policy loses, also by tag against the best static policy.

    Raises CostRangeError if the oracle was left out, since its seconds are unknown to the cost.
    """
    names = [row.policy for row in found.rows]
    reference = next(name for name, policy in policies.items() if isinstance(policy, OracleChain))
    if reference in runs.refused:
        raise runs.refused[reference]
    static = [name for name in names if isinstance(policies[name], Chain | Plain)]
    return regret_of(found, tags_of(runs), static=static, reference=reference)


def device_range(setting: Setting, scenarios: Scenarios, policies: Sequence[NamedPolicy]) -> DeviceRange:
    """The policies of the comparison under the outer readings of measured seconds, on the device of `setting`."""
    assert setting.on is not None
    found: dict[str, SideBySide] = {}
    left_out = []
    for reading in OUTER:
        cost = setting.priced(reading)
        runs = run_policies(scenarios.with_cost(cost), policies, lossless=setting.lossless, partial=True)
        found[reading.value] = runs.side_by_side({}, cost)
        refused = [(name, error) for name, error in runs.refused.items() if name in runs.asked]
        left_out += [f"{name} is left out, {reading.value} scales: {error}" for name, error in refused]
    return DeviceRange(
        measured_on=setting.device_measured_on, device=setting.on, readings=found, left_out=tuple(left_out)
    )


def against_log(recording: Recording, found: SideBySide, policies: Mapping[str, Policy]) -> list[str]:
    """A remark where the log's own seconds contradict a cost with a range.

    They do where the tokens per second of two policies have a ratio beyond the range, each at any of its ends. Named is
    the widest miss.
    """
    logged = {row.policy: _logged_rate(recording, policies[row.policy]) for row in found.rows}
    measured = {name: rate for name, rate in logged.items() if rate is not None}
    if not found.ends or found.meta["batch"] != 1:
        return []
    sides = [{row.policy: row.output_tokens_per_s for row in side.rows} for side in (found, *found.ends)]
    told = []
    for one, other in combinations(sorted(measured, key=lambda name: -measured[name]), 2):
        above, below = ([rates[name] for rates in sides if name in rates] for name in (one, other))
        ratio, least, most = measured[one] / measured[other], min(above) / max(below), max(above) / min(below)
        if not least <= ratio <= most:
            rates = f"{measured[one]:.1f} and {measured[other]:.1f} tokens/s"
            here = f"{above[0] / below[0]:.2f}x ({least:.2f} to {most:.2f})"
            remark = f"by the log's own seconds {one} is {ratio:.2f}x {other} ({rates}), by this cost {here}"
            told.append((max(least / ratio, ratio / most), f"{remark}: `cost` {TIMED} takes the log's"))
    return [max(told)[1]] if told else []


def _logged_rate(recording: Recording, policy: Policy) -> float | None:
    """Tokens per second that an imported log measured of a policy's method, where it timed every answer of it."""
    if type(policy) not in (Plain, Chain) or recording.about.costs != (TIMED,):
        return None
    members, windows = (
        (policy.spec.members, policy.spec.windows) if isinstance(policy, Chain) else ((TARGET_ALONE,), ())
    )
    if len(members) > 2 or (windows and windows[0] != recording.about.longest.get(members[0])):
        return None
    requests = by_form(recording, tries=lambda _: (), rounds=lambda rounds: rounds.requests)
    timed = all(members[0] in request.wall_s for request in requests)
    seconds = token_s(members[0], requests) if timed else None
    return None if seconds is None else 1 / seconds


@takes(ComparisonOptions)
def compare(
    recording: Recording | ReplayTables | str | Path,
    policies: PoliciesGiven | None = None,
    **options: Any,  # noqa: ANN401 - see `ComparisonOptions`
) -> Comparison:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model.

    Args:
        recording: that is replayed, as `open_recording` returns it, or its path; several calls share computed tables if
            given one ready for replay (`sim.replay_tables.tables_of`).
        policies: one or several: texts ("draft:4/target", "adaptive,most=12", "file.py:Class"), specs, classes, or
            functions that make a policy for a pool; a mapping gives them names. None: a representative set.
        options: see `ComparisonOptions`.

    Raises:
        ValueError: a bad argument or policy, in one line.
        CostRangeError: seconds unknown to the cost.
        PolicyError: a policy that broke the contract; `finished` is the comparison of the others.
    """
    asked = checked(ComparisonOptions, options)
    setting = setting_of(recording, asked)
    scenarios = setting.scenarios()
    pool = scenarios.first.tables.pool
    named = named_policies(scenarios.first.tables.default_policies if policies is None else policies)
    check_devices(asked.devices, named, pool)
    if asked.regret:
        named = with_oracles(named, pool)
    meta = setting.meta(scenarios.first)
    partial = policies is None and not setting.recording.about.all_defaults
    log = None if asked.log is None else Path(asked.log)
    runs = run_policies(scenarios, named, lossless=setting.lossless, partial=partial, keep=True, log=log)
    made = {policy.name: policy.build(pool) for policy in named}
    known = [policy for policy in named if policy.name in runs.known]
    found = runs.side_by_side(meta, scenarios.first.cost, at_ends(scenarios, known, lossless=setting.lossless))
    found.meta["remarks"] += against_log(setting.recording, found, made)
    compared = Comparison(
        runs=found,
        oracles=oracles_of(made),
        by_tag=tags_of(runs) if asked.by_tag else None,
        why=why_in(found, runs) if asked.why else None,
        regret=regret_in(found, runs, made) if asked.regret else None,
        on_device=None if setting.on is None else device_range(setting, scenarios, known),
    )
    raise_broken(runs.refused, compared if set(runs.known) - set(compared.oracles) else None)
    return compared


def raise_broken(refused: Mapping[str, CostRangeError | PolicyError], compared: Printed | None) -> None:
    """Raise the error of the first policy that broke the contract, with the comparison of the others, if any did.

    `compared` is None where these are not worth showing.
    """
    for error in refused.values():
        if isinstance(error, PolicyError):
            error.finished = compared
            raise error
