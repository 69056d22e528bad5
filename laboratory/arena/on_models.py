"""Whether policies stand in the same order on the models of a trained pool as in the simulator, at measured seconds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

from paceline.base.errors import ArgumentError, check_least
from paceline.base.terminal import Progress, quiet
from paceline.reports.summary import summarise_run
from paceline.reports.tables import Grid, Printed, table
from paceline.reports.validation import total_s
from paceline.runs.log import RunLog
from paceline.runtime.prompts import PROMPTS_FILE
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.setting import NamedPolicy, named_policies
from paceline.studies.validate import MeasuredRuns, checked_cost, measured_runs
from paceline.traces.contexts.recording import TrieRecording

from .played import BEST_STATIC
from .recordings import RecordingShelf, TrainedSource
from .statics import best_static

POLICIES = ("specrouter", "two-level", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One policy at one batch in both worlds."""

    batch: int  # requests at a time
    policy: str
    chain: str | None  # what it plays, of the best static one
    tokens: int  # of output, the same in both worlds
    simulated_s: float  # from the first admission to the last token
    runs_s: tuple[float, ...]  # the same on the models, each measured run, > 0

    @property
    def measured_s(self) -> float:
        """Median of the measured runs."""
        return median(self.runs_s)

    def apart(self, other: "Standing") -> bool:
        """Whether every measured run of one is faster than every one of the other."""
        return max(self.runs_s) < min(other.runs_s) or max(other.runs_s) < min(self.runs_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """Two policies that the models put in another order than the simulator."""

    batch: int  # requests at a time
    simulated: str  # the one that is faster in the simulator
    measured: str  # the one that is faster on the models
    apart: bool  # whether all measured runs say so
    lead: float  # of `measured` on the models, as a share of the other's seconds, > 0

    @property
    def line(self) -> str:
        """In words."""
        chance = "in every run" if self.apart else "not in every run"
        return (
            f"batch {self.batch}: {self.simulated} is simulated to be faster than {self.measured}, "
            f"on the models it takes {self.lead:.1%} longer ({chance})"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OrderOnModels(Printed):
    """The standings of all batches."""

    recording: str
    cost: str  # that was simulated with
    requests: int  # that were run
    standings: tuple[Standing, ...]  # by batch, the fastest on the models first
    remarks: tuple[str, ...]  # on the cost, a line each

    def turned(self) -> tuple[Turned, ...]:
        """Every pair that is turned over."""
        pairs = combinations(self.standings, 2)  # the first of each is at least as fast on the models
        return tuple(
            Turned(
                batch=fast.batch,
                simulated=slow.policy,
                measured=fast.policy,
                apart=fast.apart(slow),
                lead=slow.measured_s / fast.measured_s - 1,
            )
            for fast, slow in pairs
            if fast.batch == slow.batch and slow.simulated_s < fast.simulated_s
        )

    def tables(self) -> Sequence[Grid]:
        """A row for each policy and batch."""
        title = f"recording {self.recording}, {self.requests} requests, cost {self.cost}"
        return [table([self._row(one) for one in self.standings], texts=("policy", "chain"), title=title)]

    def lines(self) -> Sequence[str]:
        """Remarks, and which pairs are turned over."""
        turned = self.turned()
        pairs = sum(one.batch == other.batch for one, other in combinations(self.standings, 2))
        verdict = f"{pairs - len(turned)} of {pairs} pairs stand in the same order in both worlds"
        return [*self.remarks, verdict, *(one.line for one in turned)]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        head = {"recording": self.recording, "cost": self.cost, "requests": self.requests, "remarks": self.remarks}
        return head | {"standings": self.to_dicts(), "turned": [asdict(one) for one in self.turned()]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy and batch."""
        return [asdict(one) | {"measured_s": one.measured_s} for one in self.standings]

    def _row(self, one: Standing) -> dict[str, str]:
        best = next(each for each in self.standings if each.batch == one.batch and each.policy == BEST_STATIC)
        return {
            "batch": str(one.batch),
            "policy": one.policy,
            "chain": one.chain or "",
            "simulated tokens/s": f"{one.tokens / one.simulated_s:,.0f}",
            "measured tokens/s": f"{one.tokens / one.measured_s:,.0f}",
            "simulated of best static": f"{best.simulated_s / one.simulated_s:.3f}",
            "measured of best static": f"{best.measured_s / one.measured_s:.3f}",
            "spread": f"{(max(one.runs_s) - min(one.runs_s)) / 2 / one.measured_s:.1%}",
        }


def order_on_models(
    name: str,
    shelf: RecordingShelf,
    *,
    batches: Sequence[int] = (1, 8),
    requests: int = 48,
    runs: int = 3,
    cost: str = "here",
) -> OrderOnModels:
    """Run the best static chain in hindsight and `POLICIES` in both worlds.

    Args:
        name: of a recording of a trained pool; made if need be.
        shelf: has it.
        batches: requests at a time.
        requests: the first so many of the recording.
        runs: on the models, all policies and batches in turn; the median counts.
        cost: as `paceline validate` takes it; "here" is the newest profile of the pool on this machine.

    Raises:
        ArgumentError: no such recording, or one that no trained pool made; no batch, or a count below 1.
        ValueError: as `checked_cost`.
    """
    sources = {one: entry.source for one, entry in shelf.entries.items() if isinstance(entry.source, TrainedSource)}
    if name not in sources:
        raise ArgumentError(f"the recording must be one of {', '.join(sources)}, got {name!r}")
    for argument, value in (("`batches`", min(batches, default=0)), ("`requests`", requests), ("`runs`", runs)):
        check_least(argument, value, 1)
    trace, pool = shelf.recording(name), sources[name].trained(shelf.work)
    measured = measured_runs(pool, pool / PROMPTS_FILE, trace)
    part = replace(measured.recording, requests=measured.recording.requests[:requests])
    priced = checked_cost(cost, part, measured.models, threads=1, allow_foreign=False)
    jobs = [job for batch in batches for job in _jobs(part, priced.cost, batch)]
    return OrderOnModels(
        recording=name,
        cost=priced.cost.name,
        requests=len(part.requests),
        standings=_standings(jobs, measured, part, runs),
        remarks=(*priced.cost.notes(), *([] if priced.freshness is None else [priced.freshness.line]), *priced.remarks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    batch: int
    policy: NamedPolicy
    chain: str | None
    log: RunLog


def _jobs(part: TrieRecording, cost: CostModel, batch: int) -> list[_Job]:
    scenario = Scenario(tables=TrieTables(part), cost=cost, batch=batch)
    best = str(best_static(scenario).best)
    jobs = []
    for policy in named_policies([best, *POLICIES]):
        chain = best if policy.name == best else None
        log = simulate(scenario, policy.build(scenario.tables.pool), policy.name)
        jobs.append(_Job(batch=batch, policy=policy, chain=chain, log=log))
    return jobs


def _standings(jobs: Sequence[_Job], measured: MeasuredRuns, part: TrieRecording, runs: int) -> tuple[Standing, ...]:
    """Run everything in turn, so that a slow spell of the machine falls on all alike."""
    seconds: list[list[float]] = [[] for _ in jobs]
    with Progress("on the models", runs * len(jobs), unit="runs") as progress, quiet():
        for _ in range(runs):
            for place, job in enumerate(jobs):
                seconds[place].append(total_s(measured.run(job.policy, part, job.batch)[1]))
                progress.advance()
    found = [
        Standing(
            batch=job.batch,
            policy=job.policy.name if job.chain is None else BEST_STATIC,
            chain=job.chain,
            tokens=summarise_run(job.log).output_tokens,
            simulated_s=total_s(job.log),
            runs_s=tuple(runs_s),
        )
        for job, runs_s in zip(jobs, seconds, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (one.batch, one.measured_s)))
