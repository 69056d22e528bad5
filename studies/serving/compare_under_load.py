"""Policies under load side by side: a run for each rate, policy and seed, all of which meet the same requests."""

from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from pydantic import with_config

from ...arguments import ArgumentError, check_within, repeated
from ...interrupts import Interrupts, held_interrupts
from ...progress import Progress
from ...reports.serving.load_comparison import AtRate, LoadComparison
from ...reports.serving.over_seeds import MeasuredRun, SeedRow
from ...runs.log import new_folder
from ...runs.serving.log import ServingLog
from ...runs.serving.store import write_serving
from ...sim.cost.base import CostRangeError
from ...sim.replay_tables import ReplayTables
from ...sim.serving.routers.round_robin import RoundRobin
from ...sim.serving.simulate import INTERRUPTED, Served
from ...traces.recording import Recording
from ...traces.workloads import Workload
from ..comparing.setting import STRICT, check_kinds
from ..named_policies import NamedPolicy, PoliciesGiven, named_policies
from .broken_workload import BrokenWorkloadError
from .metrics import measured_run
from .serving_run import Watched, check_policy, notes_on, serving_run, shares_of
from .setting import LoadOptions, ServingSetting, serving_setting


@with_config(STRICT)
class Asked(LoadOptions):
    """Further keywords of `compare_under_load`."""

    rates: Sequence[float] | None
    workload: str | Path
    cluster: str | Path
    log: str | Path | None


def compare_under_load(
    recording: Recording | str | Path | None = None,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    rates: Sequence[float] | None = None,
    log: str | Path | None = None,
    **options: Unpack[LoadOptions],
) -> LoadComparison:
    """Compare policies that serve a workload, at one rate of arrivals after another.

    At one rate and seed all policies meet the same requests at the same times, and the same recorded request stands for
    each of them. Ctrl-C ends the comparison; rates and policies that were done are kept.

    Args:
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        policies: as `compare` takes them; None: a representative set.
        workload: a file of requests, or a generator's text.
        cluster: a TOML file, or a device of the sheet.
        rates: mean arrivals per second, each > 0, that the workload is scaled to; None: its own.
        log: new folder for the folders of all runs.
        options: those of `simulate`; `seed` is the first of `seeds` that a policy is run at where chance has a part;
            `start` may be "prefill" only.

    Raises:
        ValueError: an argument, a row of the workload, a cluster or a policy that will not do, in one line.
        CostRangeError: seconds that the cost does not know.
        PolicyError: a policy that broke the contract.
        KeyboardInterrupt: before a first row was done.
    """
    given = list(rates) if isinstance(rates, Iterable) else rates
    check_kinds({**options, "rates": given, "workload": workload, "cluster": cluster, "log": log}, Asked)
    asked_rates = rising_rates(given)
    setting = serving_setting(recording, workload, cluster, options)
    tables = setting.tables(setting.replay.seed)
    named = named_policies(tables.default_policies if policies is None else policies)
    _check(setting, named, tables)
    setting.check_classes(setting.opened(asked_rates[0], setting.replay.seed))
    folder = nullcontext() if log is None else new_folder(Path(log))
    cells = len(asked_rates) * len(named)
    with held_interrupts() as interrupts, folder as written, Progress("serving", cells, unit="rows") as progress:
        runs = _Runs(setting, tables, interrupts, progress, folder=written, partial=policies is None)
        found = _without(runs.refused, list(runs.at_rates(asked_rates, named)))
        if not found:
            raise KeyboardInterrupt if interrupts.heard() else next(iter(runs.refused.values()))
    left_out = [f"{name} is left out: {error}" for name, error in runs.refused.items()]
    return LoadComparison(
        rates=found,
        promised=setting.promised,
        meta={
            "workload": setting.workload,
            "cluster": setting.cluster.name,
            "setting": setting.asked(),
            "trace": setting.recording.about.name,
            "seed": setting.replay.seed,
            "seeds": setting.replay.seeds,
        },
        remarks=tuple(dict.fromkeys((*notes_on(setting), *runs.notes, *left_out))),
        num_missing=len(asked_rates) * (len(named) - len(runs.refused)) - sum(len(one.rows) for one in found),
    )


def _check(setting: ServingSetting, policies: Sequence[NamedPolicy], tables: ReplayTables) -> None:
    """Refuse, before anything is run, what cannot be compared; raises ValueError."""
    if all(replica.policy is not None for replica in setting.cluster.replicas):
        raise ArgumentError(
            "`cluster` must leave the policy of some replica open, for policies to be compared there; simulate serves "
            f"one whose replicas all have their own, got {setting.cluster.name}"
        )
    for policy in policies:
        check_policy(setting, policy, tables)


def _without(refused: Container[str], rates: Sequence[AtRate]) -> tuple[AtRate, ...]:
    """Rows of the policies that were refused at no rate."""
    kept = [
        AtRate(rate=one.rate, rows=tuple(row for row in one.rows if row.about.policy not in refused)) for one in rates
    ]
    return tuple(one for one in kept if one.rows)


def rising_rates(rates: Sequence[float] | None) -> Sequence[float | None]:
    """The rates in order; raises ArgumentError for one out of range or given twice."""
    if rates is None:
        return [None]
    if not rates:
        raise ArgumentError("`rates` must hold at least one, got none")
    for rate in rates:
        check_within("`rates`", rate, "[1e-9, 1e9]")
    twice = repeated(rates)
    if twice:
        raise ArgumentError(f"`rates` must differ, got {twice[0]:g} twice")
    return sorted(rates)


@dataclass(slots=True)
class _Runs:
    """Runs by rate, policy and seed.

    Attributes:
        setting: of all.
        first: the recording for replay at the first seed.
        interrupts: end them.
        progress: advances with every row.
        folder: takes the folder of each run; None: none is written.
        partial: whether policies may be refused.
        refused: policies whose seconds the cost does not know, and why.
        served: what each run says besides its log, with its policy.
    """

    setting: ServingSetting
    first: ReplayTables
    interrupts: Interrupts
    progress: Progress
    folder: Path | None = field(kw_only=True)
    partial: bool = field(kw_only=True)
    refused: dict[str, CostRangeError] = field(default_factory=dict)
    served: list[tuple[str, Served]] = field(default_factory=list)
    _notes: list[tuple[str, ...]] = field(default_factory=list)
    _shifted: dict[int, ReplayTables] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What is to be said of the workload at every rate and seed, and of what the recording does not hold."""
        common = [note for note in self._notes[0] if all(note in notes for notes in self._notes)] if self._notes else []
        kept = [served for policy, served in self.served if policy not in self.refused]
        emitted, cycled = sum(one.num_emitted for one in kept), sum(one.num_cycled for one in kept)
        return [*common, *shares_of(emitted, cycled, sum(one.num_modelled for one in kept))]

    def at_rates(self, rates: Sequence[float | None], policies: Sequence[NamedPolicy]) -> Iterator[AtRate]:
        """The rows of each rate, as far as they are done."""
        for rate in rates:
            rows = []
            workloads: dict[int, Workload] = {}
            for policy in policies:
                if policy.name in self.refused or self.interrupts.heard():
                    continue
                with self._refusals(policy):
                    row = self._row(rate, policy, workloads)
                    if row is not None:
                        rows.append(row)
                self.progress.advance()
            if rows:
                yield AtRate(rate=rate, rows=tuple(rows))

    @contextmanager
    def _refusals(self, policy: NamedPolicy) -> Iterator[None]:
        try:
            yield
        except CostRangeError as error:
            if not self.partial:
                raise
            self.refused[policy.name] = error

    def _row(self, rate: float | None, policy: NamedPolicy, workloads: dict[int, Workload]) -> SeedRow | None:
        """A policy at a rate, at all seeds that say something new; None: it was interrupted."""
        setting = self.setting
        runs: list[MeasuredRun] = []
        for seed in range(setting.replay.seed, setting.replay.seed + setting.replay.seeds):
            at = "" if rate is None else f" at {rate:g}/s"
            self.progress.note(f"{policy.name}{at}, seed {seed}")
            if seed not in workloads:
                workloads[seed] = setting.opened(rate, seed)
            log = self._run(policy, workloads[seed], self._tables(seed), rate, seed)
            if log.meta.stopped == INTERRUPTED:
                return None
            runs.append(measured_run(log, f"{policy.name}{at}, seed {seed}", setting.promised))
            if not _chance_in(setting, workloads[seed], log):
                break
        return SeedRow(runs=tuple(runs))

    def _run(
        self, policy: NamedPolicy, workload: Workload, tables: ReplayTables, rate: float | None, seed: int
    ) -> ServingLog:
        watched = Watched(interrupts=self.interrupts, on_ended=_nothing)
        try:
            log, served = serving_run(self.setting, policy, workload, tables, rate=rate, seed=seed, watched=watched)
        except BrokenWorkloadError as broken:  # at which every other run would end as well
            raise broken.error from None
        self._notes.append(workload.about.notes)
        self.served.append((policy.name, served))
        if self.folder is not None and log.meta.stopped != INTERRUPTED:
            at = "" if rate is None else f"-{rate:g}"
            name = "".join(char if char.isalnum() or char in "=,.-" else "_" for char in policy.name)
            write_serving(log, self.folder / f"{name}{at}-seed{seed}")
        return log

    def _tables(self, seed: int) -> ReplayTables:
        """Only where acceptance is shifted does a seed have its own."""
        replay = self.setting.replay
        if seed == replay.seed or not replay.shift_acceptance:
            return self.first
        if seed not in self._shifted:
            self._shifted[seed] = self.setting.tables(seed)
        return self._shifted[seed]


def _nothing() -> None:
    pass


def _chance_in(setting: ServingSetting, workload: Workload, log: ServingLog) -> bool:
    """Whether another seed may give another run: requests, drafts and, among several replicas, routes are drawn."""
    drafted = any(level.judged for level in log.meta.levels)
    routed = len(setting.cluster.replicas) > 1 and setting.cluster.router.router_class is not RoundRobin
    return workload.about.drawn or drafted or routed
