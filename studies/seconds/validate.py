"""How true simulated seconds are on this machine: what `paceline validate` does."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ...arguments import ArgumentError
from ...counted import counted
from ...decoding.ledger import DRAFT, VERIFY
from ...policies.default_policies import default_policies
from ...progress import Progress, quiet
from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed
from ...reports.tables.validation import cells_table, choices_table
from ...reports.validation import Cell, Choice, Verdict, choices, total_s, tpot_error_of, verdict
from ...runs.log import RunLog
from ...runs.same_steps import compare_runs
from ...runtime.decode import Output, decode
from ...runtime.pools.loaded_members import loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt, prompts_of
from ...sim.cost.base import CostModel, OperationCost
from ...sim.simulate import Scenario, simulate
from ...sim.tries.tables import TrieTables
from ...traces.tries.recording import TrieRecording
from ...traces.tries.store import read_trace
from ..named_policies import NamedPolicy, PoliciesGiven, named_policies
from ..pool import load_pool
from ..recording_to_agree import matching_trace
from .checked_cost import CheckedCost, checked_cost

BATCHES = (1, 4, 16)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Validation(Printed):
    """What came of running policies in both worlds with real seconds; prints as `paceline validate` does.

    Attributes:
        meta: what was compared: pool, recording, cost, sampling and so on.
        cells: every policy, batch and tag.
    """

    meta: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def verdict(self) -> Verdict:
        """What all cells come to."""
        return verdict(self.cells)

    def choices(self) -> list[Choice]:
        """The best policy of each batch and tag in both worlds."""
        return choices(self.cells)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md)."""
        return {
            **self.meta,
            "verdict": asdict(self.verdict),
            "cells": self.to_dicts(),
            "choices": [asdict(choice) for choice in self.choices()],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each cell."""
        return [asdict(cell) | {"error": cell.error} for cell in self.cells]

    def tables(self) -> Sequence[Grid]:
        """Cells, then the best policies."""
        meta = self.meta
        title = (
            f"pool {meta['pool']} against recording {meta['trace']}, {counted(meta['requests'], 'request')} a tag; "
            f"cost {meta['cost']}, medians of {counted(meta['runs'], 'run')}"
        )
        return [cells_table(self.cells, title=title), choices_table(self.choices())]

    def lines(self) -> Sequence[str]:
        """The verdict, and what a reader of the seconds must know."""
        found = self.verdict
        return [
            *self.meta["notes"],
            f"total seconds are off by {found.median_error:.1%} in the median, {found.worst_error:.1%} at worst",
            f"the same policy is best in {found.same_choice:.0%} of batches and tags; following the simulator costs "
            f"{found.mean_regret:.1%} on average, {found.worst_regret:.1%} at worst",
            f"equal steps in {found.equal:.0%} of cells",
        ]


def validate(
    pool: ModelPool | Path | str | None,
    prompts: Path | Sequence[Prompt | str],
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
) -> Validation:
    """Run policies on the models and in the simulator, and compare their seconds.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: of the recording.
        recording: of the pool and these prompts.
        policies: to compare; a representative set if None.
        cost: as `compare` takes it; "here" is the newest profile of this machine.
        batches: requests at a time.
        tags: that are run, each on its own; those of the recording if None.
        requests: of each tag, at most.
        runs: of the models in each cell, all cells in turn; the median counts.
        allow_foreign_profile: take a profile of another machine.
        threads: CPU threads of torch, where a pool is loaded.
        debug: say beforehand how models run.

    Raises:
        ValueError: an unknown tag, a batch or count below 1, or a recording, policy or cost that cannot be used.
    """
    for name, least in (("requests", requests), ("runs", runs), *(("batches", batch) for batch in batches)):
        if least < 1:
            raise ArgumentError(f"`{name}` must be >= 1, got {least}")
    models = load_pool(pool, threads=threads, debug=debug)
    trace = _matching(models, prompts_of(prompts), Path(recording))
    named = named_policies(default_policies(loaded_pool(models)) if policies is None else policies)
    parts = _parts(trace, tags, requests)
    priced = checked_cost(cost, trace, models, threads=threads, allow_foreign=allow_foreign_profile)
    asked = {prompt.request_id: prompt for prompt in prompts_of(prompts)}
    jobs = [
        _Job(models, part, priced.cost, policy, batch, asked) for part in parts for batch in batches for policy in named
    ]
    cells = _run(jobs, runs)
    meta = {
        "pool": models.name,
        "trace": trace.meta.name,
        "sampling": trace.meta.sampling.model_dump(),
        "batches": list(batches),
        "requests": max(len(part.requests) for part in parts),
        "runs": runs,
        "threads": threads,
    }
    return Validation(meta=meta | _about(priced), cells=cells)


def _about(priced: CheckedCost) -> dict[str, Any]:
    """What is to be said of a cost once everything was asked of it."""
    freshness = priced.freshness
    return {
        "cost": priced.cost.name,
        "freshness": None if freshness is None else freshness.to_json(),
        "notes": [*priced.cost.notes(), *([] if freshness is None else [freshness.line]), *priced.remarks],
    }


def _run(jobs: Sequence["_Job"], runs: int) -> tuple[Cell, ...]:
    """All cells in turn, so that a slow spell of the machine falls on all alike."""
    measured: list[list[RunLog]] = [[] for _ in jobs]
    outputs: list[Sequence[Output]] = [() for _ in jobs]
    with Progress("validating", runs * len(jobs), unit="runs") as progress, quiet():
        for _ in range(runs):
            for place, job in enumerate(jobs):
                outputs[place], log = job.ran()
                measured[place].append(log)
                progress.advance()
    return tuple(job.cell(logs, answers) for job, logs, answers in zip(jobs, measured, outputs, strict=True))


@dataclass(frozen=True, slots=True)
class _Job:
    """One cell to be run in both worlds."""

    models: ModelPool
    part: TrieRecording
    cost: CostModel
    policy: NamedPolicy
    batch: int
    prompts: Mapping[str, Prompt]

    def ran(self) -> tuple[Sequence[Output], RunLog]:
        """One run of the models."""
        outputs, log = decode(
            self.models,
            self.policy.build(loaded_pool(self.models)),
            [self.prompts[request.request_id] for request in self.part.requests],
            sampling=self.part.meta.sampling,
            max_new_tokens=self.part.requests[0].max_new_tokens,
            name=self.policy.name,
            batch=self.batch,
        )
        if log.meta["interrupted"]:
            raise KeyboardInterrupt
        return outputs, log

    def cell(self, logs: Sequence[RunLog], outputs: Sequence[Output]) -> Cell:
        """The simulated run beside the measured ones."""
        tables = TrieTables(self.part)
        tokens: dict[str, list[int]] = {}
        scenario = Scenario(tables=tables, cost=self.cost, batch=self.batch)
        simulated = simulate(scenario, self.policy.build(tables.pool), self.policy.name, outputs=tokens)
        middle = sorted(logs, key=total_s)[len(logs) // 2]
        seconds = [total_s(log) for log in logs]
        ran_tokens = {output.request_id: output.tokens for output in outputs}
        agreement = compare_runs(simulated, logs[-1], replayed_tokens=tokens, ran_tokens=ran_tokens)
        measured_s = median(seconds)
        forwards_s = float(simulated.ops["duration_s"].sum()) - _beside_s(simulated, self.cost)
        forwards_error = (forwards_s - middle.meta["phases"]["forward_s"]) / measured_s
        error = total_s(simulated) / measured_s - 1
        return Cell(
            policy=self.policy.name,
            batch=self.batch,
            tag=self.part.requests[0].tag,
            simulated_s=total_s(simulated),
            measured_s=measured_s,
            spread=(max(seconds) - min(seconds)) / 2 / measured_s,
            tpot_error=tpot_error_of(simulated, middle),
            forwards_error=forwards_error,
            beside_error=error - forwards_error,
            equal=agreement.difference is None and agreement.left is None,
        )


def _beside_s(log: RunLog, cost: CostModel) -> float:
    """Seconds that a replay charged beside forwards."""
    if not isinstance(cost, OperationCost):
        return 0.0
    tokens = {DRAFT: log.steps["drafted"], VERIFY: log.steps["judged"] + 1}
    ran = log.ops["num_forwards"] > 0  # a prompt lookup has a price of its own
    total = 0.0
    for kind, counts in tokens.items():
        rows = log.ops["num_rows"][(log.ops["kind"] == kind) & ran]
        total += sum(cost.beside_s(drafting=kind == DRAFT, num_rows=int(each), num_tokens=0) for each in rows)
        drafted = int(counts[(log.steps["kind"] == kind) & ran[log.steps["op"]]].sum())
        one, none = (cost.beside_s(drafting=kind == DRAFT, num_rows=1, num_tokens=count) for count in (1, 0))
        total += drafted * (one - none)
    return total


def _matching(models: ModelPool, prompts: Sequence[Prompt], path: Path) -> TrieRecording:
    """The recording, of which the models and all prompts must be."""
    stored = read_trace(path)
    known = {request.request_id for request in stored.requests}
    return matching_trace(
        path,
        models,
        [prompt for prompt in prompts if prompt.request_id in known],
        sampling=stored.meta.sampling,
        max_new_tokens=stored.requests[0].max_new_tokens,
    )


def _parts(trace: TrieRecording, tags: Sequence[str] | None, requests: int) -> list[TrieRecording]:
    """The recording by tag, the first requests of each."""
    known = list(dict.fromkeys(request.tag for request in trace.requests))
    for tag in tags or ():
        if tag not in known:
            raise ArgumentError(f"`tags` must be among {', '.join(known)}, got {tag!r}")
    return [
        replace(trace, requests=tuple(one for one in trace.requests if one.tag == tag)[:requests])
        for tag in (known if tags is None else tags)
    ]
