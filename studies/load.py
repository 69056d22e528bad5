"""Policies under load side by side; at one rate and seed all meet the same requests.

Also descriptions of a cluster or a workload, without serving.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, check_within, counted, repeated
from ..base.terminal import Interrupts, Progress, held_interrupts, tracked
from ..decoding.steps import PolicyError
from ..policies.about import runs_target_alone
from ..policies.chain_text import BASELINE, chains_in
from ..reports.intervals import ONE_SEED
from ..reports.load import AtRate, LoadComparison
from ..reports.serving_tables import MeasuredRun, SeedRow, short_of, unserved, workload_tables
from ..reports.tables import Grid, Printed, table
from ..reports.waterfall import Why
from ..reports.waterfall_under_load import SpentUnderLoad, StepS, waterfall_under_load
from ..runs.log import new_folder
from ..runs.serving import ServingLog, write_serving
from ..sim.cost.base import CostModel, CostRangeError, held_together
from ..sim.replay_tables import ReplayTables
from ..sim.rounds_once import SharedRounds
from ..sim.serving.cluster import Cluster, PlacedReplica, open_cluster
from ..sim.serving.cluster_file import TEXT_WINDOWS, DeviceMemory, MemberMemory
from ..sim.serving.limits import Admission, Preemption
from ..sim.serving.routers import RoundRobin
from ..sim.serving.serve import INTERRUPTED, Served
from ..traces.recording import Recording
from ..traces.workloads import Workload, WorkloadOptions, with_options
from ..traces.workloads.arrival import Arrival, WorkloadAbout
from ..traces.workloads.drawn_arrivals import KINDS, missing_lengths
from ..traces.workloads.summary import WorkloadSummary, summary_of
from .compare import MOST_CELLS, built, raise_broken
from .options import UnderLoadOptions, checked, takes
from .serving import (
    BrokenWorkloadError,
    ServingSetting,
    Watched,
    check_policy,
    group_to_json,
    measured_run,
    notes_on,
    policies_kept,
    policies_of,
    serving_run,
    serving_setting,
    shares_of,
)
from .setting import NamedPolicy, PoliciesGiven, named_policies, named_policy, opened_recording, with_models

REMARKS = (
    "usable: memory x share; free for keys and values: usable less weights and reserve",
    "blocks hold the same number of {} for every member of a device, unless the file gives them",
)


@dataclass(frozen=True, slots=True, repr=False)
class ClusterShown(Printed):
    """A cluster as tables: a line for each group of replicas, then the memory of one replica of each."""

    cluster: Cluster

    def tables(self) -> Sequence[Grid]:
        cluster = self.cluster
        groups = table(
            (_group_cells(name, replicas) for name, replicas in cluster.groups.items()),
            texts=("policy", "cost"),
            title=f"Cluster {cluster.name}: {counted(len(cluster.replicas), 'replica')}",
        )
        return (groups, *(_memory_table(name, replicas[0]) for name, replicas in cluster.groups.items()))

    def lines(self) -> Sequence[str]:
        cluster = self.cluster
        signals = f"signals every {cluster.stale_s:g} s" if cluster.stale_s else "signals never stale"
        horizon = "no horizon" if cluster.horizon_s is None else f"runs end at {cluster.horizon_s:g} s"
        return (f"router {cluster.router.label}, {signals}; {horizon}", *_unusual(cluster))

    def to_json(self) -> dict[str, Any]:
        """All of it, by group."""
        cluster = self.cluster
        return {
            "name": cluster.name,
            "router": cluster.router.label,
            "stale_s": cluster.stale_s,
            "horizon_s": cluster.horizon_s,
            "transfer": None if cluster.transfer is None else asdict(cluster.transfer),
            "replicas": [_group_json(name, replicas) for name, replicas in cluster.groups.items()],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each group and member."""
        return [
            {"replicas": name, "count": len(replicas), "device": device.device} | _member_json(member)
            for name, replicas in self.cluster.groups.items()
            for device in replicas[0].memory
            for member in device.members
        ]


def cluster(
    asked: str | Path, recording: Recording | str | Path | None = None, *, models: Sequence[str] | None = None
) -> ClusterShown:
    """A cluster with the members of a recording (None: the shipped one).

    `asked` is a TOML file (docs/cluster.md), or a device of the sheet, as "h100", for one replica. `models` are shapes
    of members, as `paceline compare --models` takes them. Raises ValueError, one line, for a file that breaks a rule or
    does not fit the recording.
    """
    return ClusterShown(open_cluster(asked, with_models(opened_recording(recording), models)))


def _unusual(cluster: Cluster) -> list[str]:
    """Settings that few clusters have, a line each."""
    found = []
    for name, replicas in cluster.groups.items():
        limits = replicas[0].limits
        if limits.preemption != Preemption.latest:
            found.append(f"{name}: where blocks are short, preemption {limits.preemption}")
        if limits.admission != Admission.first_chunk:
            found.append(f"{name}: requests enter by {limits.admission}")
        if limits.max_model_len:
            parts = ", ".join(f"{member} {most:,}" for member, most in limits.max_model_len.items())
            found.append(f"{name}: max_model_len of {parts}")
        if limits.offload is not None:
            host, members = limits.offload.host_bytes, limits.offload.members
            parts = ", ".join(f"{member} {own.block_ps / 1e6:,g} us" for member, own in members.items())
            found.append(f"{name}: evicted blocks go to {host / 1e9:,g} GB of host memory; one back: {parts}")
    if cluster.transfer is not None:
        roles = [f"{name} {replicas[0].role}" for name, replicas in cluster.groups.items()]
        link = cluster.transfer
        found.append(
            f"roles: {', '.join(roles)}; between them {link.bytes_per_s / 1e9:g} GB/s and {link.latency_s:g} s, "
            f"{link.token_bytes:,} bytes a token"
        )
    return found


def _group_cells(name: str, replicas: Sequence[PlacedReplica]) -> Mapping[str, str]:
    one = replicas[0]
    return {
        "replicas": name,
        "count": f"{len(replicas):,}",
        "policy": one.policy or "the run's",
        "cost": one.cost_name,
        "tensor parallel": str(one.tensor_parallel),
        "max_num_seqs": f"{one.limits.max_num_seqs:,}",
        "token_budget": f"{one.limits.token_budget:,}",
    }


def _memory_table(name: str, replica: PlacedReplica) -> Grid:
    rows: list[dict[str, str]] = []
    lines = []
    for device in replica.memory:
        rows += _device_rows(device)
        lines.append(len(rows) - 1)
    members = [member for device in replica.memory for member in device.members]
    unknown = [member.name for member in members if member.shape is None]
    held = f"texts of {TEXT_WINDOWS} windows" if any(one.kv.window is not None for one in members) else "tokens"
    windows = [
        f"{one.name}: {one.kv.groups} blocks for {one.kv.block_tokens} tokens, as vLLM groups its layers; "
        f"{window.whole} for those more than {window.tokens:,} back"
        for one in members
        if (window := one.kv.window) is not None
    ]
    return table(
        rows,
        texts=("device", "prefix cache"),
        title=f"Memory of replica: {name}",
        remarks=[
            *(line.format(held) for line in REMARKS),
            *windows,
            *([f"shapes not known, counted as no bytes: {', '.join(unknown)}"] if unknown else []),
        ],
        lines=lines,
    )


def _device_rows(device: DeviceMemory) -> list[dict[str, str]]:
    many = f" x{device.num_devices}" if device.num_devices > 1 else ""
    where = {"device": f"{device.device}{many}"}
    usable = {"what": f"usable, {device.memory_share:g} of {device.memory_bytes / 1e9:,.2f} GB"}
    rows = [usable | where | {"GB": _gigabytes(device.usable_bytes)}]
    rows += [
        {"what": f"weights of {member.name}"} | where | {"GB": _gigabytes(-member.weights_bytes)}
        for member in device.members
        if member.weights_bytes
    ]
    rows.append({"what": "activation reserve"} | where | {"GB": _gigabytes(-device.reserve_bytes)})
    rows += [_member_cells(member) | where for member in device.members]
    rows.append({"what": "left over"} | where | {"GB": _gigabytes(device.spare_bytes)})
    return rows


def _member_cells(member: MemberMemory) -> dict[str, str]:
    kv = member.kv
    token_bytes = "" if member.shape is None else f"{member.token_bytes:,}"
    kept = f"yes, drops {counted(kv.drop_units, 'block')}" if kv.drop_units else "yes"
    return {
        "what": f"KV of {member.name}{', given' if member.given else ''}",
        "GB": _gigabytes(-member.kv_bytes),
        "bytes a token": token_bytes,
        "tokens a block": f"{kv.block_tokens:,}",
        "blocks": f"{kv.num_blocks:,}",
        "tokens": f"{kv.num_tokens:,}",
        "prefix cache": kept if kv.prefix_cache else "no",
    }


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.3f}"


def _group_json(name: str, replicas: Sequence[PlacedReplica]) -> dict[str, Any]:
    memory = [_device_json(device) for device in replicas[0].memory]
    split = replicas[0].tensor_parallel
    return {"name": name, "tensor_parallel": split, **group_to_json(replicas), "memory": memory}


def _device_json(device: DeviceMemory) -> dict[str, Any]:
    return {
        "device": device.device,
        "num_devices": device.num_devices,
        "memory_bytes": device.memory_bytes,
        "memory_share": device.memory_share,
        "usable_bytes": device.usable_bytes,
        "reserve_bytes": device.reserve_bytes,
        "spare_bytes": device.spare_bytes,
        "members": [_member_json(member) for member in device.members],
    }


def _member_json(member: MemberMemory) -> dict[str, Any]:
    shape = member.shape
    return {
        "member": member.name,
        "weights_bytes": None if shape is None else member.weights_bytes,
        "kv_bytes_per_token": None if shape is None else member.token_bytes,
        "kv_bytes": None if shape is None else member.kv_bytes,
        "given": member.given,
        **member.kv.told,
    }


@takes(UnderLoadOptions)
def compare_under_load(
    recording: Recording | str | Path | None = None,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    **options: Any,  # noqa: ANN401 - see `UnderLoadOptions`
) -> LoadComparison:
    """Compare policies that serve a workload, at one rate of arrivals after another.

    At one rate and seed all policies meet the same requests at the same times, and the same recorded request is
    replayed for each of them. Ctrl-C ends the comparison; finished rates and policies are kept.

    Args:
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        policies: as `compare` takes them; None: a representative set.
        workload: a file of requests, or a generator's text.
        cluster: a TOML file, or a device of the sheet.
        options: see `UnderLoadOptions`; `log` takes the folders of all runs, `seed` is the first of `seeds` that a
            policy is run at if its runs are random; `start` may be "prefill" only.

    Raises:
        ValueError: an argument, a row of the workload, a cluster or a policy that cannot be used, in one line.
        CostRangeError: seconds unknown to the cost.
        PolicyError: a policy that broke the contract; `finished` is the comparison of the others.
        KeyboardInterrupt: before the first row.
    """
    rates = options.get("rates")
    given = {"workload": workload, "cluster": cluster, "rates": list(rates) if isinstance(rates, Iterable) else rates}
    asked = checked(UnderLoadOptions, options | given)
    asked_rates = rising_rates(asked.rates)
    setting = serving_setting(recording, workload, cluster, asked)
    tables = setting.tables(setting.replay.seed)
    named = policies_asked(policies, asked.chains, tables, most=MOST_CELLS // len(asked_rates))
    check_policies(setting, named, tables)
    first = setting.opened(asked_rates[0], setting.replay.seed)
    setting.check_classes(first)
    try_policies(setting, named, tables, first)
    folder = nullcontext() if asked.log is None else new_folder(Path(asked.log))
    alone = None if any(policy.name == BASELINE for policy in named) else named_policy(BASELINE)
    cells = len(asked_rates) * (len(named) + (alone is not None))
    with held_interrupts() as interrupts, folder as written, Progress("serving", cells, unit="rows") as progress:
        runs = LoadRuns(
            setting,
            tables,
            interrupts,
            progress,
            folder=written,
            ends=setting.ends(),
            alone=alone,
            why=asked.why,
            partial=policies is None and asked.chains is None,
            keep=True,
        )
        every = list(runs.at_rates(asked_rates, named))  # a policy that is rejected at any rate is left out of all
        known = [[row for row in one.rows if row.about.policy not in runs.refused] for one in every]
        found = tuple(replace(one, rows=tuple(rows)) for one, rows in zip(every, known, strict=True) if rows)
        if not found:
            raise KeyboardInterrupt if interrupts.heard() else next(iter(runs.refused.values()))
    short = short_of(run for at in found for row in at.rows for run in row.runs)
    compared = LoadComparison(
        rates=found,
        why=why_of(runs, found) if asked.why else None,
        promised=setting.promised,
        meta=meta_of(setting),
        remarks=tuple(dict.fromkeys((*notes_on(setting), *runs.notes, *short, *runs.left_out))),
        num_missing=len(asked_rates) * sum(policy.name not in runs.refused for policy in named)
        - sum(len(one.rows) for one in found),
    )
    raise_broken(runs.refused, compared)
    return compared


def policies_asked(
    policies: PoliciesGiven | None, chains: Sequence[str] | None, tables: ReplayTables, *, most: int
) -> list[NamedPolicy]:
    """The policies, or all chains of texts with ranges, at most `most`; without both a representative set.

    Raises ArgumentError for both, ValueError for a bad chain, or too many.
    """
    if chains is None:
        return named_policies(tables.default_policies if policies is None else policies)
    if policies is not None:
        raise ArgumentError("`policies` has no part beside `chains`; a chain with numbers for windows is a policy")
    return named_policies([str(chain) for chain in chains_in(chains, tables.pool, most=most)])


def meta_of(setting: ServingSetting) -> dict[str, Any]:
    """Metadata of a comparison."""
    return {
        "workload": setting.workload,
        "cluster": setting.cluster.name,
        "setting": setting.asked(),
        "trace": setting.recording.about.name,
        "seed": setting.replay.seed,
        "seeds": setting.replay.seeds,
    }


def check_policies(setting: ServingSetting, policies: Sequence[NamedPolicy], tables: ReplayTables) -> None:
    """Raise ValueError, before any run, for policies that cannot be compared."""
    if all(replica.policy is not None for replica in setting.cluster.replicas):
        raise ArgumentError(
            "`cluster` must leave the policy of some replica open, for policies to be compared there; simulate serves "
            f"one whose replicas all have their own, got {setting.cluster.name}"
        )
    for policy in policies:
        check_policy(setting, policy, tables)


@dataclass(frozen=True, slots=True)
class _First:
    """The first request of a workload, alone; implements `Workload`."""

    workload: Workload

    @property
    def about(self) -> WorkloadAbout:
        return self.workload.about

    def __iter__(self) -> Iterator[Arrival]:
        return (arrival._replace(turns=None) for arrival in islice(self.workload, 1))


def try_policies(
    setting: ServingSetting, policies: Sequence[NamedPolicy], tables: ReplayTables, workload: Workload
) -> None:
    """Serve the first request under each policy, so that a bad step, such as a tree, raises before any row is made."""
    watched, seed = Watched(interrupts=Interrupts(), on_ended=lambda: None), setting.replay.seed
    for policy in policies:
        with suppress(CostRangeError):  # which its row tells
            serving_run(setting, policy, _First(workload), tables, rate=None, seed=seed, watched=watched)


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
class LoadRuns:
    """Runs by rate, policy and seed, each made on demand."""

    setting: ServingSetting
    first: ReplayTables  # the recording for replay at the first seed
    interrupts: Interrupts
    progress: Progress  # advances with every row
    folder: Path | None = field(default=None, kw_only=True)  # takes the folder of each run; None: none is written
    # the setting at the ends of its costs' ranges, at which the first seed of every row is served again
    ends: Sequence[ServingSetting] = field(default=(), kw_only=True)
    alone: NamedPolicy | None = field(default=None, kw_only=True)  # also run, if not among the policies
    why: bool = field(default=False, kw_only=True)  # whether to fill `spent`, for which operations are kept
    # by rate and policy where the seconds of the first seed's run went
    spent: dict[tuple[float | None, str], SpentUnderLoad | None] = field(default_factory=dict)
    partial: bool = field(default=False, kw_only=True)  # whether policies may be rejected
    # whether those that break the contract are, for the others' rows to be kept
    keep: bool = field(default=False, kw_only=True)
    # policies whose seconds are unknown to the cost, or that broke the contract, and why
    refused: dict[str, CostRangeError | PolicyError] = field(default_factory=dict)
    # what each run has beside its log, with its policy
    served: list[tuple[str, Served]] = field(default_factory=list)
    has_chance: bool = False  # whether a run is random
    _notes: list[tuple[str, ...]] = field(default_factory=list)
    _shifted: dict[int, ReplayTables] = field(default_factory=dict)
    _known: tuple[str, int, SharedRounds] | None = None  # of the latest policy and seed

    @property
    def left_out(self) -> list[str]:
        """Rejected policies, and why, a line each."""
        alone = None if self.alone is None else self.alone.name
        return [
            f"no gain over the target alone is known: {error}" if name == alone else f"{name} is left out: {error}"
            for name, error in self.refused.items()
        ]

    @property
    def notes(self) -> list[str]:
        """Notes on the workload at every rate and seed, and on what the recording lacks."""
        common = [note for note in self._notes[0] if all(note in notes for notes in self._notes)] if self._notes else []
        kept = [served for policy, served in self.served if policy not in self.refused]
        emitted, cycled = sum(one.num_emitted for one in kept), sum(one.num_cycled for one in kept)
        replay = self.setting.replay
        one_seed = [ONE_SEED.format(replay.seed)] if self.has_chance and replay.seeds == 1 else []
        own = policies_kept(self.setting)
        fixed = [f"{own} in every run: policies, and the target alone, are those of the other replicas"] if own else []
        return [*common, *fixed, *shares_of(emitted, cycled, sum(one.num_modelled for one in kept)), *one_seed]

    def remarks(self, measured: Sequence[MeasuredRun]) -> list[str]:
        """What readers of figures of `measured`, some of these runs, need to know, a line each."""
        rejected = unserved(measured)
        return [*notes_on(self.setting), *self.notes, *short_of(measured), *([rejected] if rejected else [])]

    def at_rates(self, rates: Sequence[float | None], policies: Sequence[NamedPolicy]) -> Iterator[AtRate]:
        """All policies at one rate after the other, until an interrupt."""
        alone = [] if self.alone is None else [self.alone]
        for rate in rates:
            rows: dict[str, SeedRow] = {}
            workloads: dict[int, Workload] = {}
            for policy in [*policies, *alone]:
                if policy.name in self.refused or self.interrupts.heard():
                    continue
                with self.refusals(policy):
                    row = self._row(rate, policy, workloads)
                    if row is not None:
                        rows[policy.name] = row
                self.progress.advance()
            asked = tuple(rows[policy.name] for policy in policies if policy.name in rows)
            if asked:
                yield AtRate(rate=rate, rows=asked, alone=rows.get(BASELINE))

    def row(self, policy: NamedPolicy, rate: float | None) -> SeedRow:
        """One policy at one rate, at all seeds; raises KeyboardInterrupt."""
        for found in self.at_rates([rate], [policy]):
            return found.rows[0]
        raise KeyboardInterrupt

    @contextmanager
    def refusals(self, policy: NamedPolicy) -> Iterator[None]:
        """Within the block a rejection of the policy is noted, if allowed, else raised."""
        try:
            yield
        except (CostRangeError, PolicyError) as error:
            allowed = self.keep if isinstance(error, PolicyError) else self.partial or policy is self.alone
            if not allowed:
                raise
            self.refused[policy.name] = error

    def _row(self, rate: float | None, policy: NamedPolicy, workloads: dict[int, Workload]) -> SeedRow | None:
        """A policy at a rate, at all seeds, or one if nothing is random; None: interrupted."""
        runs: list[MeasuredRun] = []
        ends: list[MeasuredRun] = []
        for seed in self.seeds:
            if seed not in workloads:
                workloads[seed] = self.setting.opened(rate, seed)
            run = self.run(policy, workloads[seed], rate, seed)
            if run is None:
                return None
            found, chance = run
            runs.append(found)
            if seed == self.setting.replay.seed:
                ends = [self._end(setting, policy, workloads[seed], rate) for setting in self.ends]
            if not chance:
                break
        return None if ends and self.interrupts.heard() else SeedRow(runs=tuple(runs), ends=tuple(ends))

    def _end(self, setting: ServingSetting, policy: NamedPolicy, workload: Workload, rate: float | None) -> MeasuredRun:
        """The first seed's run at an end of the costs' ranges; an interrupt cuts it."""
        seed = setting.replay.seed
        watched = Watched(interrupts=self.interrupts, on_ended=lambda: None)
        rounds = self._rounds(policy, self.first, seed)
        log, _ = serving_run(
            setting, policy, workload, self.first, rate=rate, seed=seed, watched=watched, rounds=rounds
        )
        return measured_run(log, policy.name, setting.promised)

    def _rounds(self, policy: NamedPolicy, tables: ReplayTables, seed: int) -> SharedRounds:
        """Rounds of the latest policy and seed: they depend on neither rate nor cost."""
        if self._known is None or self._known[:2] != (policy.name, seed):
            answers = tables.answers(seed=seed, strict=self.setting.replay.strict)
            self._known = policy.name, seed, SharedRounds(tables.pool, answers)
        return self._known[2]

    @property
    def seeds(self) -> range:
        """All requested seeds."""
        replay = self.setting.replay
        return range(replay.seed, replay.seed + replay.seeds)

    def run(
        self, policy: NamedPolicy, workload: Workload, rate: float | None, seed: int
    ) -> tuple[MeasuredRun, bool] | None:
        """The figures of one run, and whether another seed may give others; None: interrupted.

        `workload` is opened at the rate and the seed.
        """
        at = "" if rate is None else f" at {rate:g}/s"
        self.progress.note(f"{policy.name}{at}, seed {seed}")
        log = self._run(policy, workload, self._tables(seed), rate, seed)
        if log.meta.stopped == INTERRUPTED:
            return None
        # Requests, drafts and, among several replicas, routes are drawn. A policy that drafts nothing for the requests
        # of this seed may draft for others.
        cluster, lossless = self.setting.cluster, self.setting.replay.lossless
        made = (built(self.first, one, lossless=lossless) for one in policies_of(self.setting, policy))
        drafts = not all(map(runs_target_alone, made))
        routed = len(cluster.replicas) > 1 and cluster.router.maker is not RoundRobin
        chance = workload.about.drawn or drafts or routed
        self.has_chance |= chance
        found = measured_run(log, f"{policy.name}{at}, seed {seed}", self.setting.promised)
        # A log names the policies of all replicas; here runs differ in that of the replicas without their own.
        about = log.meta.about.model_copy(update={"policy": policy.name})
        return replace(found, meta=log.meta.model_copy(update={"about": about})), chance

    def _run(
        self, policy: NamedPolicy, workload: Workload, tables: ReplayTables, rate: float | None, seed: int
    ) -> ServingLog:
        watched = Watched(interrupts=self.interrupts, on_ended=lambda: None)
        explained = self.why and seed == self.setting.replay.seed
        try:
            log, served = serving_run(
                self.setting,
                policy,
                workload,
                tables,
                rate=rate,
                seed=seed,
                watched=watched,
                events=explained,
                rounds=self._rounds(policy, tables, seed),
            )
        except BrokenWorkloadError as broken:  # every other run would end there as well
            raise broken.error from None
        if explained:
            self.spent[rate, policy.name] = SpentUnderLoad.of(log, _steps_s(self.setting))
        self._notes.append(workload.about.notes)
        self.served.append((policy.name, served))
        if self.folder is not None and log.meta.stopped != INTERRUPTED:
            at = "" if rate is None else f"-{rate:g}"
            write_serving(log, self.folder / f"{policy.file_name}{at}-seed{seed}")
        return log

    def _tables(self, seed: int) -> ReplayTables:
        """The tables of a seed: its own only if acceptance is shifted."""
        replay = self.setting.replay
        if seed == replay.seed or not replay.shift_acceptance:
            return self.first
        if seed not in self._shifted:
            self._shifted[seed] = self.setting.tables(seed)
        return self._shifted[seed]


def _steps_s(setting: ServingSetting) -> list[StepS]:
    """Seconds of a forward of the target, by replica."""
    target = setting.recording.about.target

    def of(cost: CostModel) -> StepS:
        return lambda new, held: cost.forward_s(
            target, num_rows=len(held), new_tokens=new, context_tokens=held_together(cost, target, held)
        )

    return [of(replica.cost) for replica in setting.cluster.replicas]


def why_of(runs: LoadRuns, rates: Sequence[AtRate]) -> dict[float | None, Why]:
    """Where the gains of the policies go, by rate."""
    return {
        one.rate: Why(
            policies={
                row.about.policy: waterfall_under_load(
                    runs.spent[one.rate, row.about.policy], runs.spent.get((one.rate, BASELINE))
                )
                for row in one.rows
                if row is not one.alone
            }
        )
        for one in rates
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkloadDescription(Printed):
    """The content of a workload; prints as `paceline workload` does."""

    summary: WorkloadSummary

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/workloads.md)."""
        return asdict(self.summary) | {"shared_share": self.summary.shared_share}

    def tables(self) -> Sequence[Grid]:
        return workload_tables(self.summary)


def describe_workload(
    workload: str | os.PathLike[str],
    options: WorkloadOptions | None = None,
    *,
    lengths_from: str | Path | None = None,
) -> WorkloadDescription:
    """Read or draw all of a workload, as its options scale and cut it, and count what it holds.

    `workload` is as `open_workload` takes it; `options` None does not change it. `lengths_from` is a .trace folder that
    a generator draws lengths from where its text gives none; None is the recording that comes with the package.

    Raises:
        TraceFormatError: a file that cannot be read, or breaks its format.
        ValueError: an option out of its range, or one that does not fit the workload.
    """
    asked = options or WorkloadOptions()
    recording = None
    text = str(workload)
    if text.partition(":")[0] in KINDS and missing_lengths(text):
        recording = opened_recording(lengths_from)
    elif lengths_from is not None:
        raise ArgumentError(f"`lengths_from` must be left out: no lengths of {text!r} are drawn")
    opened = with_options(workload, asked, recording)
    if asked.seed and not opened.about.drawn:
        raise ArgumentError(f"`seed` must be left out: nothing of {text!r} is drawn")
    watch = partial(tracked, stage="reading", unit="arrivals", total=opened.about.num_arrivals)
    return WorkloadDescription(summary=summary_of(opened, watch=watch))
