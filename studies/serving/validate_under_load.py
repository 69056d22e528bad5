"""How true simulated latencies under load are on this machine: what `paceline validate --workload` does."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...arguments import ArgumentError, check_least
from ...counted import counted
from ...policies.default_policies import default_policies
from ...progress import Progress, quiet
from ...reports.serving.validation import (
    LATENCIES,
    LoadCell,
    figures_of,
    half_range,
    medians,
    worst_and_median,
)
from ...reports.serving.validation_tables import HEADINGS, latency_table, load_cells_table
from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed, flat_rows
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.pools.loaded_members import loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt, prompts_of
from ...sim.serving.cluster.make_cluster import open_cluster
from ...traces.workloads import WorkloadOptions, with_options
from ..named_policies import NamedPolicy, PoliciesGiven, named_policies
from ..pool import is_forced, load_pool
from ..seconds.checked_cost import CheckedCost, checked_cost
from ..seconds.measured_runs import DecodedRuns
from .compare_under_load import rising_rates
from .in_the_loop.attached_workload import AttachedWorkload
from .in_the_loop.served_worlds import ServedRun, ServedWorlds
from .serving_run import shares_of


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadValidation(Printed):
    """What came of serving a workload in both worlds; prints as `paceline validate --workload` does.

    Attributes:
        meta: what was compared: pool, recording, workload, cluster, cost and so on.
        cells: every rate and policy.
    """

    meta: Mapping[str, Any]
    cells: tuple[LoadCell, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        return {
            **self.meta,
            "errors": worst_and_median(self.cells),
            "cells": [asdict(cell) | {"errors": cell.errors()} for cell in self.cells],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each cell."""
        return flat_rows([asdict(cell) | {"errors": cell.errors()} for cell in self.cells])

    def tables(self) -> Sequence[Grid]:
        """Throughput and work, then each latency."""
        meta = self.meta
        title = (
            f"pool {meta['pool']} in the loop against recording {meta['trace']}; workload {meta['workload']}, cluster "
            f"{meta['cluster']}, cost {meta['cost']}, medians of {counted(meta['runs'], 'run')}"
        )
        first = load_cells_table(self.cells, title=title)
        return [first, *(latency_table(self.cells, latency) for latency in LATENCIES)]

    def lines(self) -> Sequence[str]:
        """What a reader of the seconds must know, and the errors of all cells together."""
        found = worst_and_median(self.cells)
        means = ", ".join(
            f"{HEADINGS[latency]} {errors['median']:.1%} ({errors['worst']:.1%})"
            for latency in LATENCIES
            if (errors := found.get(f"{latency}_mean")) is not None
        )
        equal = sum(cell.equal for cell in self.cells)
        left = sum(cell.left for cell in self.cells)
        near = [f"{counted(left, 'request')} left the record by a near tie of two tokens"] if left else []
        counts = [(cell.emitted, cell.cycled, cell.modelled) for cell in self.cells]
        return [
            *self.meta["notes"],
            *shares_of(*map(sum, zip(*counts, strict=True))),
            *near,
            f"means are off in the median (at worst) by: {means or 'nothing finished'}",
            f"equal work in {equal} of {counted(len(self.cells), 'cell')}",
        ]


def validate_under_load(
    pool: ModelPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str],
    recording: Path | str,
    policies: PoliciesGiven | None = None,
    *,
    workload: str | Path,
    cluster: str | Path,
    rates: Sequence[float] | None = None,
    cost: str = "here",
    limit: int | None = None,
    runs: int = 3,
    seed: int = 0,
    allow_foreign_profile: bool = False,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> LoadValidation:
    """Serve a workload on the models and in the simulator, and compare latencies and throughput.

    Arrivals, router, batches, chunks of prefills and blocks are those of the simulated engine in both worlds, on its
    clock; with the models, an operation takes as long as they do.

    Args:
        pool: models, or where they are; None is the shipped pool.
        prompts: of the recording.
        recording: of the pool and these prompts, greedy. Requests of the workload get its prompts, and answers as long
            as it has.
        policies: to compare, lossless; a representative set if None.
        workload: a file of requests, or a generator's text, for times of arrival.
        cluster: a TOML file, or a device of the sheet; without prefix caches.
        rates: mean arrivals per second, each > 0; None: the workload's own.
        cost: of all replicas, as `compare` takes it; "here" is the newest profile of this machine.
        limit: of arrivals.
        runs: of the models in each cell, all cells in turn; medians count.
        seed: of all that is drawn.
        allow_foreign_profile: take a profile of another machine.
        threads: CPU threads of torch, where a pool is loaded.
        debug: say beforehand how models run.
        chat: put prompts as questions of a dialogue, as the recording did.

    Raises:
        ValueError: a recording, workload, cluster, policy or cost that cannot be used, or a request that failed.
        MemoryError: a device has no room for what the blocks of the cluster hold.
    """
    check_least("`runs`", runs, 1)
    asked = rising_rates(rates)
    models = _loaded(pool, threads=threads, debug=debug, chat=chat)
    trace = DecodedRuns(models, prompts_of(prompts), Path(recording)).recording
    opened = [with_options(workload, WorkloadOptions(rate=rate, limit=limit, seed=seed), trace) for rate in asked]
    served_on = open_cluster(cluster, trace)
    named = named_policies(default_policies(loaded_pool(models)) if policies is None else policies)
    priced = checked_cost(cost, trace, models, threads=threads, allow_foreign=allow_foreign_profile)
    worlds = ServedWorlds(models, trace, served_on, priced.cost, seed=seed)
    for policy in named:
        worlds.build(policy)
    attached = [(rate, worlds.attached(arrivals)) for rate, arrivals in zip(asked, opened, strict=True)]
    jobs = [_Job(worlds, policy, rate, arrivals) for rate, arrivals in attached for policy in named]
    cells = _run(jobs, runs)
    meta: dict[str, Any] = {
        "pool": models.name,
        "trace": trace.meta.name,
        "workload": str(workload),
        "cluster": served_on.name,
    }
    meta |= {"rates": None if rates is None else list(rates), "runs": runs, "seed": seed, "threads": threads}
    return LoadValidation(meta=meta | _about(priced, jobs[0].workload), cells=cells)


def _loaded(pool: ModelPool | Path | str | None, *, threads: int, debug: bool, chat: bool) -> ModelPool:
    """The models of a pool; raises ArgumentError for a forced one."""
    if isinstance(pool, ForcedPool) or is_forced(pool):
        raise ArgumentError("`workload` goes with a pool of trained models, whose text is their own, not a forced one")
    return load_pool(pool, threads=threads, debug=debug, chat=chat)


def _about(priced: CheckedCost, workload: AttachedWorkload) -> dict[str, Any]:
    """What is to be said of a cost and a workload once everything was asked of them."""
    freshness = priced.freshness
    return {
        "cost": priced.cost.name,
        "freshness": None if freshness is None else freshness.to_json(),
        "notes": [
            *workload.about.notes,
            *priced.cost.notes(),
            *([] if freshness is None else [freshness.line]),
            *priced.remarks,
        ],
    }


@dataclass(frozen=True, slots=True)
class _Job:
    """One cell to be run in both worlds."""

    worlds: ServedWorlds
    policy: NamedPolicy
    rate: float | None
    workload: AttachedWorkload

    def measured(self) -> ServedRun:
        """One run of the models."""
        return self.worlds.measured(self.policy, self.workload)

    def cell(self, runs: Sequence[ServedRun]) -> LoadCell:
        """The simulated run beside the measured ones."""
        ours, theirs = self.worlds.simulated(self.policy, self.workload), runs[-1]
        figures = [figures_of(run.log) for run in runs]
        both = ours.tokens.keys() & theirs.tokens.keys()
        return LoadCell(
            policy=self.policy.name,
            rate=self.rate,
            requests=len(ours.log.requests["request_id"]),
            finished=(len(ours.tokens), len(theirs.tokens)),
            preemptions=(len(ours.log.preemptions["request"]), len(theirs.log.preemptions["request"])),
            simulated=figures_of(ours.log),
            measured=medians(figures),
            spread=half_range([run["e2e_s_mean"] for run in figures if "e2e_s_mean" in run]),
            other_answers=sum(ours.tokens[request_id] != theirs.tokens[request_id] for request_id in both),
            left=len(frozenset().union(*(run.left for run in runs))),
            emitted=ours.served.num_emitted,
            cycled=ours.served.num_cycled,
            modelled=ours.served.num_modelled,
            equal=ours.log.meta.levels == theirs.log.meta.levels,
        )


def _run(jobs: Sequence[_Job], runs: int) -> tuple[LoadCell, ...]:
    """All cells in turn, so that a slow spell of the machine falls on all alike."""
    measured: list[list[ServedRun]] = [[] for _ in jobs]
    with Progress("serving", runs * len(jobs), unit="runs") as progress, quiet():
        for _ in range(runs):
            for found, job in zip(measured, jobs, strict=True):
                found.append(job.measured())
                progress.advance()
    return tuple(job.cell(found) for job, found in zip(jobs, measured, strict=True))
