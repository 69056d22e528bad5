"""What `paceline validate --observed` does: compare simulated latencies with those of a running server.

The simulator serves the requests of an observed run, at seconds that are fitted to another run: a forward takes
`intercept_s + per_new_token_s x new tokens + per_kv_token_s x tokens held` (a line of docs/costs.md). A pattern search
(Hooke and Jeeves 1961) moves the three figures in turn, by factors that shrink, until no move brings simulated times
nearer. It needs no gradient, which queues and batches do not have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, check_within, counted
from ..base.terminal import Progress, held_interrupts
from ..reports.observed import ObservedCell, acceptance_words, cells_table, compared, tpot_ps, verdict
from ..reports.tables import Grid, Printed, shown
from ..runs.observed import FOLLOWS, ObservedMeta, ObservedRequest, ObservedRun, read_run
from ..runs.serving import ServingLog
from ..sim.cost.base import CostModel
from ..sim.cost.files import CostLine, FileCost
from ..sim.replay_tables import ReplayTables
from ..traces.recording import Recording
from ..traces.workloads.arrival import PS_PER_S, Arrival, WorkloadAbout
from .options import ServingOptions
from .serving import ServingSetting, Watched, check_policy, serving_run, serving_setting
from .setting import NamedPolicy, named_policy

PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequests:
    """The requests of an observed run that can be served anew; implements `Workload`."""

    name: str  # of the run
    requests: tuple[ObservedRequest, ...]  # that finished, by the time at which they were sent
    left_out: int  # failed and unfinished ones, and those without a token

    @property
    def about(self) -> WorkloadAbout:
        """See `Workload`."""
        notes = (f"{counted(self.left_out, 'observed request')} did not finish: not replayed",) if self.left_out else ()
        count = len(self.requests)
        return WorkloadAbout(
            name=self.name,
            files=(),
            format="observed",
            unit_tokens=0,
            num_requests=count,
            notes=notes,
            num_arrivals=count,
        )

    def __iter__(self) -> Iterator[Arrival]:
        began_ps = self.requests[0].sent_at_ps
        for one in self.requests:
            assert one.prompt_tokens is not None
            assert one.output_tokens is not None
            yield Arrival(one.request_id, one.sent_at_ps - began_ps, one.prompt_tokens, one.output_tokens)

    def rows_of(self, other: ServingLog) -> Sequence[int]:
        """Rows of a serving log that hold these requests, in their order."""
        rows = {name: row for row, name in enumerate(other.requests["request_id"].tolist())}
        return [rows[one.request_id] for one in self.requests]


def replayed_requests(run: ObservedRun, name: str) -> ReplayedRequests:
    """Those that can be served anew; raises ArgumentError for one whose tokens nobody counted, or without one."""
    finished = run.finished
    for one in finished:
        for field in ("prompt_tokens", "output_tokens"):
            if getattr(one, field) is None:
                raise ArgumentError(
                    f"{name}: request {one.request_id}: {field} must be known to be replayed, the server told none; "
                    "observe with --usage or --count-tokens"
                )
    kept = tuple(one for one in finished if one.output_tokens and one.outputs_at_ps)
    if not kept:
        raise ArgumentError(f"{name}: must hold a request that finished with a token, has none")
    return ReplayedRequests(name=name, requests=kept, left_out=len(run.requests) - len(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Serves observed requests on a cluster, at any seconds."""

    setting: ServingSetting
    policy: NamedPolicy | None  # None: every replica has its own
    tables: ReplayTables
    seed: int  # of all that is drawn

    @property
    def target(self) -> str:
        """The target's name."""
        return self.setting.recording.about.target

    @property
    def cost_names(self) -> str:
        """The costs of all replicas, as they are shown."""
        return ", ".join(dict.fromkeys(replica.cost_name for replica in self.setting.cluster.replicas))

    def priced(self, cost: CostModel) -> "Replayer":
        """The same at other seconds, of all replicas."""
        cluster = self.setting.cluster
        replicas = tuple(replace(one, cost=cost, cost_name=cost.name) for one in cluster.replicas)
        return replace(self, setting=replace(self.setting, cluster=replace(cluster, replicas=replicas)))

    def served(self, requests: ReplayedRequests) -> ServingLog:
        """One run; raises ValueError and CostRangeError as `simulate`, KeyboardInterrupt if it is interrupted."""
        with held_interrupts() as interrupts:
            watched = Watched(interrupts=interrupts, on_ended=lambda: None)
            setting = replace(self.setting, workload=requests.name)
            log, _ = serving_run(
                setting, self.policy, requests, self.tables, rate=None, seed=self.seed, watched=watched
            )
            if interrupts.heard():
                raise KeyboardInterrupt
        return log


def replayer(
    cluster: str | Path,
    policy: str | None,
    recording: Recording | str | Path | None,
    *,
    cost: str | None,
    seed: int,
) -> Replayer:
    """A cluster to serve on; arguments are as `simulate` takes them, and raise what it raises.

    Without a policy replicas that have none of their own are plain.
    """
    setting = serving_setting(recording, "observed", cluster, ServingOptions(cost=cost, seed=seed))
    own = all(replica.policy is not None for replica in setting.cluster.replicas)
    asked = PLAIN if policy is None and not own else policy
    named, tables = None if asked is None else named_policy(asked), setting.tables(seed)
    check_policy(setting, named, tables)
    return Replayer(setting=setting, policy=named, tables=tables, seed=seed)


_FIRST_FACTOR, _LAST_FACTOR = 2.0, 1.005
_MOST_ROUNDS = 60
_LEAST_S = 1e-9
_Figures = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSeconds:
    """What a fit came to."""

    run: str  # that it was fitted to
    member: str  # whose forwards the line is of
    line: CostLine  # of seconds
    # mean size of the natural logarithm of simulated over observed times, over TTFT and the time from there to the end
    # of each request; 0.1 is about 10%
    misfit: float
    tried: int  # runs of the simulator

    @property
    def cost(self) -> FileCost:
        """As the simulator takes it."""
        return FileCost(f"calibrated on {self.run}", {self.member: self.line})


def calibrate(requests: ReplayedRequests, replayer: Replayer) -> FittedSeconds:
    """Fit the seconds of the target's forwards to an observed run; those of the replayer's cluster are not used."""
    observed = _observed(requests.requests)
    tried = 0

    def calibration(figures: _Figures, misfit: float = 0.0) -> FittedSeconds:
        line = CostLine(intercept_s=figures[0], per_new_token_s=figures[1], per_kv_token_s=figures[2])
        return FittedSeconds(run=requests.name, member=replayer.target, line=line, misfit=misfit, tried=tried)

    def misfit(figures: _Figures) -> float:
        nonlocal tried
        tried += 1
        return _misfit(requests, observed, replayer.priced(calibration(figures).cost).served(requests))

    with Progress("calibrating", unit="runs") as progress:
        figures, least = _searched(_first(requests.requests), misfit, progress.advance)
    return calibration(figures, least)


def _searched(
    start: _Figures, misfit: Callable[[_Figures], float], on_tried: Callable[[], None]
) -> tuple[_Figures, float]:
    """(figures, their misfit) that no small move betters."""
    best, least, factor = start, misfit(start), _FIRST_FACTOR
    for _ in range(_MOST_ROUNDS):
        before = least
        for place in range(len(best)):
            for step in (factor, 1 / factor):
                moved: list[float] = list(best)
                moved[place] *= step
                figures = (moved[0], moved[1], moved[2])
                found = misfit(figures)
                on_tried()
                if found < least:
                    best, least = figures, found
                    break
        if least == before:
            factor **= 0.5
            if factor < _LAST_FACTOR:
                break
    return best, least


def _first(requests: Sequence[ObservedRequest]) -> _Figures:
    """Where the search begins: a step takes the least TPOT, a token of a prompt its share of the least TTFT."""
    steps = [tpot / PS_PER_S for one in requests if (tpot := tpot_ps(one)) is not None]
    shares = [(one.outputs_at_ps[0] - one.sent_at_ps) / PS_PER_S / (one.prompt_tokens or 1) for one in requests]
    step_s = max(_LEAST_S, min(steps, default=median(shares)))
    return step_s, max(_LEAST_S, min(shares)), step_s * 1e-5


def _observed(requests: Sequence[ObservedRequest]) -> np.ndarray:
    """`[R, 2]` seconds of each request: to its first token, and from there to its end."""
    return np.array(
        [
            (one.outputs_at_ps[0] - one.sent_at_ps, (one.ended_at_ps or 0) - one.outputs_at_ps[0])
            for one in requests
            if one.outputs_at_ps
        ],
        dtype=np.float64,
    )


def _misfit(requests: ReplayedRequests, observed: np.ndarray, served: ServingLog) -> float:
    rows = requests.rows_of(served)
    columns = served.requests
    first, ended = columns["first_token_at_ps"][rows], columns["ended_at_ps"][rows]
    simulated = np.stack([first - columns["arrived_at_ps"][rows], ended - first], axis=1)
    both = (simulated > 0) & (observed > 0)
    return float(np.abs(np.log(simulated[both] / observed[both])).mean()) if both.any() else log(1e9)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ObservedValidation(Printed):
    """Simulated and observed figures of a run; prints as `paceline validate --observed` does."""

    meta: Mapping[str, Any]  # what was compared: run, server, cluster, policy, cost, bounds, notes
    calibration: FittedSeconds | None  # whose seconds the simulator took; None: those of the cluster, or of a cost
    cells: tuple[ObservedCell, ...]  # each figure

    @property
    def within(self) -> bool:
        """Whether every figure that both worlds have is within its bound."""
        return all(cell.within is not False for cell in self.cells)

    def tables(self) -> Sequence[Grid]:
        """A line for each figure."""
        meta = self.meta
        title = (
            f"{meta['observed']} ({meta['model']}, {counted(meta['requests'], 'request')}) against cluster "
            f"{meta['cluster']}, policy {meta['policy']}, cost {meta['cost']}"
        )
        return [cells_table(self.cells, title)]

    def lines(self) -> Sequence[str]:
        """What was fitted, what a reader must know, and the verdict."""
        found = self.calibration
        fitted = [] if found is None else [_fitted_words(found)]
        return [*fitted, *self.meta["notes"], verdict(self.cells)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        found = self.calibration
        calibration = (
            None
            if found is None
            else {
                "run": found.run,
                "misfit": found.misfit,
                "tried": found.tried,
                "cost": {found.member: found.line.model_dump()},
            }
        )
        cells = [cell.to_json() for cell in self.cells]
        return {**self.meta, "calibration": calibration, "within": self.within, "cells": cells}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each figure."""
        return [cell.to_json() for cell in self.cells]


def validate_observed(
    observed: str | Path,
    *,
    cluster: str | Path,
    calibrate_on: str | Path | None = None,
    policy: str | None = None,
    recording: Recording | str | Path | None = None,
    cost: str | None = None,
    mean_bound: float = 0.1,
    tail_bound: float = 0.2,
    seed: int = 0,
) -> ObservedValidation:
    """Serve the requests of an observed run in the simulator, and compare latencies and throughput.

    Args:
        observed: folder that `paceline observe --out` wrote, or the detailed result of a serving benchmark.
        cluster: that is simulated: a TOML file, or a device of the sheet.
        calibrate_on: another run, to which the seconds of the target's forwards are fitted; None: nothing is.
        policy: of the replicas that have none of their own; None: plain.
        recording: that acceptance is drawn from; None: the one that comes with the package.
        cost: of all replicas, in place of the cluster's own; not beside `calibrate_on`.
        mean_bound: largest size of the error of means, medians, throughput and duration that passes, in (0, 10].
        tail_bound: the same of p90 and p99.
        seed: of all that is drawn.

    Raises:
        ValueError: a folder that holds no sound run, the same run to fit to and to judge, a request whose tokens nobody
            counted, or what `simulate` refuses; one line.
    """
    check_within("`mean_bound`", mean_bound, "(0, 10]")
    check_within("`tail_bound`", tail_bound, "(0, 10]")
    if calibrate_on is not None and cost is not None:
        raise ArgumentError(f"`cost` must be left out beside `calibrate`, which fits one, got {cost}")
    run, name = read_run(Path(observed)), str(observed)
    requests = replayed_requests(run, name)
    on_cluster = replayer(cluster, policy, recording, cost=cost, seed=seed)
    other = None if calibrate_on is None else read_run(Path(calibrate_on))
    fitted = None if other is None else _fitted_to(other, str(calibrate_on), run, name, on_cluster)
    priced = on_cluster if fitted is None else on_cluster.priced(fitted.cost)
    log = priced.served(requests)
    judged = ObservedRun(run.meta, requests.requests)
    notes_of_runs = [note for one in (other, run) if one is not None for note in one.meta.notes]
    from_results = [FOLLOWS] if FOLLOWS in notes_of_runs else []
    meta = {
        "observed": name,
        "url": run.meta.url,
        "model": run.meta.model,
        "requests": len(requests.requests),
        "cluster": priced.setting.cluster.name,
        "policy": log.meta.about.policy,
        "cost": priced.cost_names,
        "seed": seed,
        "notes": [*from_results, *_notes(run.meta, log), *_about_requests(requests)],
    }
    cells = compared(judged, log, mean_bound=mean_bound, tail_bound=tail_bound)
    return ObservedValidation(meta=meta, calibration=fitted, cells=cells)


def _fitted_to(run: ObservedRun, called: str, judged: ObservedRun, name: str, replayer: Replayer) -> FittedSeconds:
    """Seconds of another run; raises ArgumentError where it is the same one, also as a copy."""
    if run.requests == judged.requests:  # to the picosecond; the meta of a copy may name another file
        raise ArgumentError(
            f"`calibrate` must be another run than `observed`: a fit says nothing of what it was fitted to, got "
            f"{called} for {name}"
        )
    return calibrate(replayed_requests(run, called), replayer)


def _notes(meta: ObservedMeta, log: ServingLog) -> list[str]:
    notes = []
    if meta.loop == "closed":
        notes.append("a closed loop is replayed by the times at which its requests were sent")
    target = log.meta.levels[-1]
    if meta.acceptance is not None or target.judged:
        rate = shown(target.accepted / target.judged if target.judged else None, ".1%", unknown="nothing drafted")
        notes.append(f"acceptance: simulated {rate}; observed {acceptance_words(meta.acceptance)}")
    return notes


def _about_requests(requests: ReplayedRequests) -> list[str]:
    told = [one for one in requests.requests if one.cached_tokens is not None]
    cached = sum(one.cached_tokens or 0 for one in told)
    prompts = sum(one.prompt_tokens or 0 for one in told)
    of = f"{counted(len(told), 'request')} that it told it of"
    held = [f"the server had {cached / prompts:.1%} of the prompt tokens of {of} in its cache"] if cached else []
    return [*requests.about.notes, *held]


def _fitted_words(found: FittedSeconds) -> str:
    line = found.line
    return (
        f"calibrated on {found.run}: a forward of {found.member} takes {1e3 * line.intercept_s:.4g} ms + "
        f"{1e3 * line.per_new_token_s:.4g} ms for each token fed + {1e6 * line.per_kv_token_s:.4g} us for each token "
        f"held; there simulated times are off by {found.misfit:.1%} on average"
    )
