"""What `paceline validate` does: compare simulated seconds with those of this machine.

Prompts are decoded by models, or a recording's decisions are forced on models of random weights. Either way there is a
recording of these models, which the simulator replays. Each cell is unique: no policy is compared with itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar, TypeVar

from ..base.errors import ArgumentError, check_each_once, check_least, counted
from ..base.terminal import Progress, quiet, tell, tracked
from ..decoding.legal_steps import Policy
from ..decoding.seen import Observation, Start
from ..decoding.steps import Overlap, Step, Verify
from ..decoding.trees import DraftTree
from ..policies.about import about_of, members_run_by
from ..policies.chain_text import default_policies
from ..policies.combined import OnlyLossless
from ..reports.tables import Grid, Printed, whole_percent
from ..reports.validation import (
    BestPolicy,
    Cell,
    ValidationVerdict,
    cells_table,
    choices,
    choices_table,
    middle_runs,
    repeatability,
    total_s,
    tpot_error_of,
    verdict,
)
from ..runs.agreement import compare_runs
from ..runs.log import RunLog
from ..runtime.decode import decode, whole
from ..runtime.forced import ForcedPool, forced_recording, forced_run
from ..runtime.pools.members import LoadedMembers, loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..sim.contexts import TrieTables
from ..sim.cost.base import CostModel
from ..sim.cost.by_name import make_cost
from ..sim.cost.measured import ProfiledCost, names_profile, profiled_cost
from ..sim.simulate import Scenario, simulate
from ..traces.contexts.on_disk import read_trace
from ..traces.contexts.recording import TrieRecording
from .agree import matching_trace, synthetic_cost
from .decode import is_forced, load_models
from .profile_check import Freshness, check_runnable, device_name, measure_freshness, mismatches, remarks_on_profile
from .setting import NamedPolicy, PoliciesGiven, named_policies


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCost:
    """A cost, with checks made before any run."""

    cost: CostModel
    freshness: Freshness | None = None  # of its profile; None for a cost without a profile
    remarks: tuple[str, ...] = ()  # remarks on its seconds, a line each

    def about(self, notes: Sequence[str] = ()) -> dict[str, Any]:
        """The cost after its use, for the meta of a validation, whose own `notes` come first."""
        freshness = self.freshness
        lines = [] if freshness is None else [freshness.line]
        return {
            "cost": self.cost.name,
            "freshness": None if freshness is None else freshness.to_json(),
            "notes": [*notes, *self.cost.notes(), *lines, *self.remarks],
        }


def members_that_run(policies: Iterable[Policy]) -> frozenset[str] | None:
    """The members that these built policies may run; None: any."""
    runs = [members_run_by(policy) for policy in policies]
    return None if None in runs else frozenset[str]().union(*filter(None, runs))


def checked_cost(
    name: str,
    recording: TrieRecording,
    models: LoadedMembers,
    *,
    threads: int,
    allow_foreign: bool,
    runs: Collection[str] | None = None,
) -> CheckedCost:
    """A cost by name, as for `make_cost`; checks whether its profile fits, by measuring some again, and what changed.

    `models` will run, with `threads` threads; `allow_foreign` accepts a profile that cannot hold here, labelled.
    Whether it fits is asked of the members `runs`; None: of all. Raises ValueError for no such cost, or a profile that
    cannot hold here.
    """
    if not names_profile(name):
        return CheckedCost(cost=make_cost(name, recording, allow_foreign_profile=allow_foreign))
    device = device_name(models)
    cost = profiled_cost(name, recording, allow_foreign=allow_foreign, threads=threads, device=device)
    if not allow_foreign:
        _refuse_foreign(cost, models, threads)
    foreign = [f"FOREIGN profile: {words}" for words in mismatches(cost.profile, models)]
    remarks = [*foreign, *remarks_on_profile(cost.profile.meta, models, recording.meta.sampling.mode)]
    freshness = measure_freshness(cost.profile, models, runs)
    for line in (freshness.line, *remarks):
        tell(line)
    return CheckedCost(cost=cost, freshness=freshness, remarks=tuple(remarks))


def _refuse_foreign(cost: ProfiledCost, models: LoadedMembers, threads: int) -> None:
    """Raise ArgumentError if the seconds of a profile cannot hold here."""
    measured = cost.profile.meta.threads
    advice = "profile again, or `allow_foreign_profile` takes it"
    if measured != threads:
        raise ArgumentError(f"`threads` must be {measured}, as {cost.name} was measured with, got {threads}: {advice}")
    for words in mismatches(cost.profile, models):
        raise ArgumentError(f"`cost` {cost.name} does not fit these models: {words}; {advice}")


Tokens = Mapping[str, Sequence[int]]


class MeasuredRuns(ABC):
    """Runs of models whose decisions are in a recording."""

    models: ModelPool | ForcedPool
    recording: TrieRecording  # of them, for the simulator
    forced: ClassVar[bool]  # whether decisions are the recording's, not the models'

    def build(self, policy: NamedPolicy) -> Policy:
        """A policy for a run; raises ValueError for one that cannot be run, such as a lossy one of a forced pool."""
        built = policy.build(loaded_pool(self.models))
        tags = (request.tag for request in self.recording.requests)
        where = f"recording {self.recording.meta.name}"
        check_runnable(built, policy.name, forced=self.forced, tags=tags, where=where)
        return built

    @abstractmethod
    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        """The committed tokens by request, and the log, of the requests of a part of the recording."""


class DecodedRuns(MeasuredRuns):
    """Prompts decoded by models. `path` is that of the recording.

    Raises ValueError unless the recording is of the models and of some of the prompts.
    """

    forced = False

    def __init__(self, models: ModelPool, prompts: Sequence[Prompt], path: Path) -> None:
        stored = read_trace(path)
        known = {request.request_id for request in stored.requests}
        self.models: ModelPool = models
        self._prompts = {prompt.request_id: prompt for prompt in prompts}
        self.recording = matching_trace(
            path,
            models,
            [prompt for prompt in prompts if prompt.request_id in known],
            sampling=stored.meta.sampling,
            max_new_tokens=stored.requests[0].max_new_tokens,
        )

    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        ran = decode(
            self.models,
            self.build(policy),
            [self._prompts[request.request_id] for request in part.requests],
            sampling=part.meta.sampling,
            max_new_tokens=part.requests[0].max_new_tokens,
            name=policy.name,
            batch=batch,
        )
        outputs, log = whole(ran)
        return {output.request_id: output.tokens for output in outputs}, log


class ForcedRuns(MeasuredRuns):
    """A recording's decisions, as stored, on as many models of random weights.

    Raises ArgumentError for a recording that cannot be forced on these models.
    """

    forced = True

    def __init__(self, models: ForcedPool, recording: TrieRecording) -> None:
        self.models: ForcedPool = models
        self.recording = forced_recording(recording, models)
        self._tables: dict[tuple[str, ...], TrieTables] = {}

    def run(self, policy: NamedPolicy, part: TrieRecording, batch: int) -> tuple[Tokens, RunLog]:
        asked = tuple(request.request_id for request in part.requests)
        if asked not in self._tables:
            self._tables[asked] = TrieTables(part)
        tables = self._tables[asked]
        # The seconds of this world are not used.
        decisions = tables.world(synthetic_cost(part.meta.model_names), seed=0, strict=False)
        sessions = list(decisions.sessions(tables.prefill_before(Start.prefill)))
        log = forced_run(
            self.models,
            self.build(policy),
            sessions,
            decisions,
            sampling=part.meta.sampling,
            trace=part.meta.name,
            name=policy.name,
            batch=batch,
        )
        return {session.request_id: session.emitted for session in sessions}, log


def measured_runs(
    pool: ModelPool | ForcedPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str] | None,
    recording: Path | str,
    *,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> MeasuredRuns:
    """Runs of the models of a pool, forced ones if the pool is; arguments are as of `validate`.

    Raises ValueError for a pool, prompts or a recording that cannot be used together.
    """
    forced = is_forced(pool)
    if forced and prompts is not None:
        raise ArgumentError("`prompts` must be left out with a forced pool, whose requests are those of the recording")
    if not forced and prompts is None:
        raise ArgumentError("`prompts` must be given, those of the recording: only a forced pool needs none")
    models = load_models(pool, threads=threads, debug=debug, chat=chat)
    if isinstance(models, ForcedPool):
        return ForcedRuns(models, read_trace(Path(recording)))
    assert prompts is not None
    return DecodedRuns(models, prompts_of(prompts), Path(recording))


BATCHES = (1, 4, 16)

# Committed tokens by request, and the log.
_Ran = tuple[Tokens, RunLog]
Ran = TypeVar("Ran")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Printed):
    """The results of running policies in both worlds with real seconds; prints as `paceline validate` does."""

    meta: Mapping[str, Any]  # what was compared: pool, recording, cost, sampling and so on
    cells: tuple[Cell, ...]  # every policy, batch and tag

    @property
    def verdict(self) -> ValidationVerdict:
        """The verdict over all cells."""
        return verdict(self.cells)

    @property
    def repeatability(self) -> ValidationVerdict | None:
        """How well the machine repeats itself: measured runs compared with each other; None with one run."""
        return repeatability(self.cells)

    def choices(self) -> list[BestPolicy]:
        """The best policy of each batch and tag in both worlds."""
        return choices(self.cells)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        repeated = self.repeatability
        return {
            **self.meta,
            "verdict": asdict(self.verdict),
            "repeatability": None if repeated is None else asdict(repeated),
            "cells": self.to_dicts(),
            "choices": [asdict(choice) for choice in self.choices()],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each cell."""
        return [
            asdict(cell) | {"measured_s": cell.measured_s, "spread": cell.spread, "error": cell.error}
            for cell in self.cells
        ]

    def tables(self) -> Sequence[Grid]:
        meta = self.meta
        pool = f"{'FORCED ' if meta['forced'] else ''}pool {meta['pool']}"
        title = (
            f"{pool} against recording {meta['trace']}, {counted(meta['requests'], 'request')} a tag; "
            f"cost {meta['cost']}, medians of {counted(meta['runs'], 'run')}"
        )
        return [cells_table(self.cells, title=title), choices_table(self.choices())]

    def lines(self) -> Sequence[str]:
        found = self.verdict
        forced = [f"forced: what is accepted comes from recording {self.meta['trace']}, not from the models"]
        return [
            *(forced if self.meta["forced"] else []),
            *self.meta["notes"],
            f"total seconds are off by {found.median_error:.1%} in the median, {found.worst_error:.1%} at worst",
            f"the same policy is best in {found.same_choice:.0%} of batches and tags; following the simulator costs "
            f"{found.mean_regret:.1%} on average, {found.worst_regret:.1%} at worst",
            f"equal steps in {whole_percent(found.equal)} of cells",
            self._repeatability_line(),
        ]

    def _repeatability_line(self) -> str:
        """The limit of any prediction."""
        found = self.repeatability
        if found is None:
            return "how well the machine repeats its own seconds is not known from one run"
        return (
            f"measured runs are off from each other by {found.median_error:.1%} in the median, "
            f"{found.worst_error:.1%} at worst; the same policy is best in {found.same_choice:.0%}, "
            f"following one costs {found.mean_regret:.1%} on average, {found.worst_regret:.1%} at worst; "
            f"equal steps in {whole_percent(found.equal)}"
        )


def validate(
    pool: ModelPool | ForcedPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str] | None,
    recording: Path | str,
    policies: PoliciesGiven | None = None,
    *,
    cost: str = "here",
    batches: Sequence[int] = BATCHES,
    tags: Sequence[str] | None = None,
    requests: int = 8,
    runs: int = 3,
    allow_foreign_profile: bool = False,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> Validation:
    """Run policies on the models and in the simulator, and compare their seconds.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_models`). On a forced pool the decisions of
            the recording are forced.
        prompts: of the recording; None with a forced pool.
        recording: of the pool and these prompts; of as many models as a forced pool has.
        policies: to compare; a representative set if None.
        cost: as `compare` takes it; "here" is the newest profile of this machine.
        batches: requests at a time.
        tags: to run, each on its own; those of the recording if None.
        requests: of each tag, at most.
        runs: of the models in each cell, all cells in turn; the median counts.
        allow_foreign_profile: take a profile of another machine.
        threads: CPU threads of torch, where a pool is loaded.
        debug: first say how models run.
        chat: render prompts as questions of a dialogue, as in the recording; not with a forced pool.

    Raises:
        ValueError: an unknown tag, a batch or count below 1, a repeated tag or batch, none of them, or a recording,
            policy or cost that cannot be used.
    """
    for name, count in (("requests", requests), ("runs", runs), *(("batches", batch) for batch in batches)):
        check_least(f"`{name}`", count, 1)
    check_each_once("batches", batches)
    if tags is not None:
        check_each_once("tags", tags)
    measured = measured_runs(pool, prompts, recording, threads=threads, debug=debug, chat=chat)
    models, trace = measured.models, measured.recording
    named = named_policies(default_policies(loaded_pool(models)) if policies is None else policies)
    runs_of = members_that_run([measured.build(policy) for policy in named])
    parts = _parts(trace, tags, requests)
    priced = checked_cost(cost, trace, models, threads=threads, allow_foreign=allow_foreign_profile, runs=runs_of)
    jobs = [_Job(measured, part, priced.cost, policy, batch) for part in parts for batch in batches for policy in named]
    # Replays come first: they are fast and may raise, as for seconds unknown to the cost.
    replays = [job.replay() for job in tracked(jobs, "replaying", total=len(jobs), unit="runs")]
    ran = in_turns("validating", [job.run for job in jobs], runs)
    meta = {
        "pool": models.name,
        "forced": measured.forced,
        "trace": trace.meta.name,
        "sampling": trace.meta.sampling.model_dump(),
        "batches": list(batches),
        "requests": max(len(part.requests) for part in parts),
        "runs": runs,
        "threads": threads,
    }
    cells = tuple(job.cell(replay, own) for job, replay, own in zip(jobs, replays, ran, strict=True))
    return Validation(meta=meta | priced.about(), cells=cells)


def in_turns(stage: str, jobs: Sequence[Callable[[], Ran]], runs: int) -> list[list[Ran]]:
    """The results of each job in `runs` runs, all in turn: so a slow spell of the machine affects all alike."""
    ran: list[list[Ran]] = [[] for _ in jobs]
    with Progress(stage, runs * len(jobs), unit="runs") as progress, quiet():
        for _ in range(runs):
            for own, job in zip(ran, jobs, strict=True):
                own.append(job())
                progress.advance()
    return ran


class _Forceable(OnlyLossless):
    """Refuses steps that cannot be forced, which the models would refuse in the middle of a run."""

    def decide(self, seen: Observation) -> Step:
        """The policy's step; raises ValueError for a lossy rule of any member, a tree or an Overlap."""
        step = super().decide(seen)
        if isinstance(step, DraftTree | Overlap) or (isinstance(step, Verify) and not step.rule.lossless):
            raise ValueError(f"{step} cannot be forced: a forced run has no lossy rule, token tree or Overlap")
        return step


@dataclass(frozen=True, slots=True)
class _Job:
    measured: MeasuredRuns
    part: TrieRecording
    cost: CostModel
    policy: NamedPolicy
    batch: int

    def replay(self) -> _Ran:
        tables = TrieTables(self.part)
        outputs: dict[str, list[int]] = {}
        scenario = Scenario(tables=tables, cost=self.cost, batch=self.batch)
        built = self.policy.build(tables.pool)
        made = _Forceable(built, about_of(built)) if self.measured.forced else built
        log = simulate(scenario, made, self.policy.name, outputs=outputs)
        return outputs, log

    def run(self) -> _Ran:
        return self.measured.run(self.policy, self.part, self.batch)

    def cell(self, replay: _Ran, ran: Sequence[_Ran]) -> Cell:
        _, simulated = replay
        logs = [log for _, log in ran]
        middle = middle_runs(logs)
        seconds = tuple(total_s(log) for log in logs)
        measured_s = median(seconds)
        forwards_s = float(simulated.ops["duration_s"].sum()) - simulated.meta.get("beside_s", 0.0)
        forwards_error = (forwards_s - fmean(log.meta["phases"]["forward_s"] for log in middle)) / measured_s
        error = total_s(simulated) / measured_s - 1
        return Cell(
            policy=self.policy.name,
            batch=self.batch,
            tag=self.part.requests[0].tag,
            simulated_s=total_s(simulated),
            runs_s=seconds,
            tpot_error=tpot_error_of(simulated, middle),
            forwards_error=forwards_error,
            beside_error=error - forwards_error,
            equal=_same_steps(replay, ran[-1]),
            runs_equal=all(_same_steps(one, ran[-1]) for one in ran[:-1]),
            forced=self.measured.forced,
        )


def _same_steps(one: _Ran, other: _Ran) -> bool:
    (our_tokens, ours), (their_tokens, theirs) = one, other
    found = compare_runs(ours, theirs, replayed_tokens=our_tokens, ran_tokens=their_tokens)
    return found.difference is None and found.left is None


def _parts(trace: TrieRecording, tags: Sequence[str] | None, requests: int) -> list[TrieRecording]:
    known = list(dict.fromkeys(request.tag for request in trace.requests))
    for tag in tags or ():
        if tag not in known:
            raise ArgumentError(f"`tags` must be among {', '.join(known)}, got {tag!r}")
    return [
        replace(trace, requests=tuple(one for one in trace.requests if one.tag == tag)[:requests])
        for tag in (known if tags is None else tags)
    ]
