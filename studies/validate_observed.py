"""What `paceline validate --observed` does: compare simulated latencies with those of a running server.

The simulator serves the requests of an observed run, at seconds that are fitted to other runs of the same server
(`calibrate`), if any are given. A run with known drafting is replayed with its own rounds (`observed_runs`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import ArgumentError, check_within, counted
from ..base.files import write_whole
from ..reports.observed import ObservedCell, acceptance_words, cells_table, compared, observed_figures, verdict
from ..reports.tables import Grid, Printed, shown
from ..runs.observed import FOLLOWS, ObservedMeta, ObservedRun
from ..runs.serving import ServingLog
from ..sim.cost.devices import device_named
from ..sim.cost.files import FIT, FitVerdict
from ..sim.cost.roofline import RooflineCost
from ..traces.recording import Recording
from ..traces.shapes import shape_called
from .calibrate import FittedSeconds, calibrate, observed_ps, simulated_ps
from .observed_runs import (
    Asked,
    Replayable,
    ReplayedRequests,
    Replayer,
    check_same_server,
    has_drafted,
    is_priced,
    replayable,
    replayer,
)

MEAN_BOUND, TAIL_BOUND = 0.1, 0.2  # largest sizes of errors that pass


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ObservedValidation(Printed):
    """Simulated and observed figures of a run; prints as `paceline validate --observed` does."""

    meta: Mapping[str, Any]  # what was compared: run, server, cluster, policy, cost, bounds, notes
    calibration: FittedSeconds | None  # whose seconds the simulator used; None: those of the cluster, or of a cost
    cells: tuple[ObservedCell, ...]  # each figure

    @property
    def within(self) -> bool:
        """Whether every figure that both worlds have is within its bound."""
        return all(cell.within is not False for cell in self.cells)

    def tables(self) -> Sequence[Grid]:
        meta = self.meta
        title = (
            f"{meta['observed']} ({meta['model']}, {counted(meta['requests'], 'request')}) against cluster "
            f"{meta['cluster']}, policy {meta['policy']}, cost {meta['cost']}"
        )
        return [cells_table(self.cells, title)]

    def lines(self) -> Sequence[str]:
        fitted = [] if self.calibration is None else self.calibration.lines()
        return [*fitted, *self.meta["notes"], verdict(self.cells)]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        found = self.calibration
        calibration = None if found is None else found.to_json()
        cells = [cell.to_json() for cell in self.cells]
        return {**self.meta, "calibration": calibration, "within": self.within, "cells": cells}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each figure."""
        return [cell.to_json() for cell in self.cells]


def validate_observed(
    observed: Asked,
    *,
    cluster: str | Path,
    calibrate_on: Asked | Sequence[Asked] = (),
    write_cost: str | Path | None = None,
    policy: str | None = None,
    recording: Recording | str | Path | None = None,
    cost: str | None = None,
    mean_bound: float = MEAN_BOUND,
    tail_bound: float = TAIL_BOUND,
    seed: int = 0,
) -> ObservedValidation:
    """Serve the requests of an observed run in the simulator, and compare latencies and throughput.

    Args:
        observed: folder that `paceline observe --out` wrote, or the detailed result of a serving benchmark; with `=K`
            behind it, K the tokens that a round drafts, if the run does not give it.
        cluster: that is simulated: a TOML file, or a device of the sheet.
        calibrate_on: other runs of the same server, with its drafter and without, to which the seconds of forwards and
            drafts are fitted; empty: no fit.
        write_cost: the FILE.json for the fit; None: not written.
        policy: of the replicas that have none of their own; None: as the run drafted, plain if unknown.
        recording: that acceptance is drawn from; None: the run's own rounds.
        cost: of all replicas, in place of the cluster's own; not with `calibrate_on`.
        mean_bound: largest size of the error of means, medians, throughput and duration that passes, in (0, 10].
        tail_bound: the same of p90 and p99.
        seed: of all random draws.

    Raises:
        ValueError: a folder without a valid run, the same run to fit to and to compare with, runs of different servers,
            fewer observed times than terms, a request with uncounted tokens, or as of `simulate`; one line.
    """
    check_within("`mean_bound`", mean_bound, "(0, 10]")
    check_within("`tail_bound`", tail_bound, "(0, 10]")
    others = [calibrate_on] if isinstance(calibrate_on, str | Path) else list(calibrate_on)
    if others and cost is not None:
        raise ArgumentError(f"`cost` must be left out beside `calibrate`, which fits one, got {cost}")
    if write_cost is not None and not others:
        raise ArgumentError("`write_cost` goes with `calibrate`, which fits what is written")
    given = policy is not None or recording is not None
    run, runs = replayable(observed, with_rounds=not given), [replayable(other) for other in others]
    _check_others(run, runs)
    if given and any(other.drafts.tokens for other in runs):
        what = "policy" if recording is None else "trace"
        raise ArgumentError(
            f"`{what}` must be left out where `calibrate` has a run that drafts: each has its own rounds"
        )
    # With its own rounds, if it drafted and no other option is given.
    if given or not run.drafts.tokens:
        on_cluster = replayer(cluster, policy, recording, cost=cost, seed=seed, is_fitted=bool(runs))
        if policy is None and on_cluster.policy is not None and has_drafted(run.run.meta.acceptance, None):
            raise ArgumentError(
                f"`trace` goes with `policy`, since {run.name} drafted: without one the target is alone"
            )
    else:
        on_cluster = run.replayer(cluster, cost, seed, is_fitted=bool(runs))
        if not runs and not is_priced(on_cluster):
            raise ArgumentError(
                f"`observed` {run.name} drafted {run.drafts.tokens} tokens a round, and {on_cluster.cost_names} does "
                "not know its models: give `calibrate`, `cost` FILE.json, or `policy` and `trace`"
            )
    fitted = None
    if runs:
        fitted = calibrate(runs, lambda one: one.replayer(cluster, None, seed, is_fitted=True), on_cluster.target)
        on_cluster = on_cluster.priced(fitted.cost)
    found = held_against(run, on_cluster, runs=runs, calibration=fitted, mean_bound=mean_bound, tail_bound=tail_bound)
    if fitted is not None and write_cost is not None:
        fit = FitVerdict(runs=fitted.runs, observed=run.name, within=found.within, verdict=verdict(found.cells))
        contents = fitted.contents | {FIT: fit.model_dump()}
        write_whole(Path(write_cost), json.dumps(contents, indent=1) + "\n")
    return found


def held_against(
    run: Replayable,
    on_cluster: Replayer,
    *,
    runs: Sequence[Replayable] = (),
    calibration: FittedSeconds | None = None,
    mean_bound: float = MEAN_BOUND,
    tail_bound: float = TAIL_BOUND,
) -> ObservedValidation:
    """Serve the requests of a run, and compare; `runs` are those of the calibration."""
    requests = replace(run.requests, tagged=on_cluster.has_rounds)
    log = on_cluster.served(requests)
    cells = compared(ObservedRun(run.run.meta, requests.requests), log, mean_bound=mean_bound, tail_bound=tail_bound)
    meta = _meta(run, runs, on_cluster, log, on_cluster.seed)
    return ObservedValidation(meta=meta, calibration=calibration, cells=cells)


def _meta(
    run: Replayable, others: Sequence[Replayable], on_cluster: Replayer, log: ServingLog, seed: int
) -> dict[str, Any]:
    notes_of_runs = [note for one in (*others, run) for note in one.run.meta.notes]
    from_results = [FOLLOWS] if FOLLOWS in notes_of_runs else []
    rounds = [
        f"rounds of {one.name}, {one.drafts.tokens} drafted tokens each: {one.drafts.told_by}"
        for one in (*others, run)
        if one.drafts.tokens and (one is not run or on_cluster.has_rounds)
    ]
    told = [one for one in run.requests.requests if one.cached_tokens is not None]
    cached, prompts = (sum(getattr(one, name) or 0 for one in told) for name in ("cached_tokens", "prompt_tokens"))
    of = f"{counted(len(told), 'request')} that it told it of"
    held = [f"the server had {cached / prompts:.1%} of the prompt tokens of {of} in its cache"] if cached else []
    notes = [*from_results, *rounds, *_notes(run.run.meta, log), *run.requests.about.notes, *held]
    return {
        "observed": run.name,
        "url": run.run.meta.url,
        "model": run.run.meta.model,
        "requests": len(run.requests.requests),
        "cluster": on_cluster.setting.cluster.name,
        "policy": log.meta.about.policy,
        "cost": on_cluster.cost_names,
        "seed": seed,
        "notes": [
            *notes,
            *_simulated(on_cluster),
            *_pace(run.requests, log),
            *(each for one in (*others, run) for each in _peaks(one, on_cluster)),
        ],
    }


def _simulated(on_cluster: Replayer) -> list[str]:
    """Which target was simulated where seconds depend on it: without a recording that of the shipped one."""
    recording = on_cluster.setting.recording
    known = recording.known_shapes().get(on_cluster.target)
    if known is None or known.shape is None or is_priced(on_cluster):
        return []
    return [f"simulated: {on_cluster.target} of {recording.about.name}, {known.shape.parameters:,} parameters"]


def _peaks(run: Replayable, on_cluster: Replayer) -> list[str]:
    """A remark if a run was faster than the peaks of the cluster's device allow the model that the server named."""
    replica, policy = on_cluster.setting.cluster.replicas[0], on_cluster.policy
    shape = shape_called(run.run.meta.model, on_cluster.target, None)
    named, tpot_s = device_named(replica.placement[on_cluster.target]), observed_figures(run.run).tpot_s
    is_known = run.drafts.tokens or (policy is not None and policy.name == run.drafts.policy)
    if shape is None or named is None or tpot_s is None or not is_known:
        return []
    device = replace(named.device, layer_launch_s=0.0, link_latency_s=0.0)  # assumptions, no peaks
    ask = "another device, dtype or model than said?"
    try:
        step = RooflineCost(device, (shape,), tensor_parallel=replica.tensor_parallel)
    except ValueError as error:
        return [f"{run.name} of {run.run.meta.model}: {error}: {ask}"]
    rows = run.drafts.tokens + 1  # a step gives at most
    least_s = step.forward_s(shape.name, num_rows=1, new_tokens=1, context_tokens=0) / rows
    if tpot_s.mean >= least_s:
        return []
    took = f"TPOT was {tpot_s.mean * 1e3:.3g} ms in the mean, the peaks of {step.name} allow {least_s * 1e3:.3g} ms"
    return [f"{run.name}: {took} at best for {run.run.meta.model}: {ask}"]


_LEAST_HALF = 8  # requests
_CHANGED = 0.05  # by which halves of a run must differ, and significantly, to be reported


def _pace(requests: ReplayedRequests, log: ServingLog) -> list[str]:
    """A remark if the server's seconds changed while it was observed, which no cost can express."""
    order = np.argsort([one.sent_at_ps for one in requests.requests])
    simulated, observed = (found[order, 1] for found in (simulated_ps(requests, log), observed_ps(requests.requests)))
    timed = (simulated > 0) & (observed > 0)
    halves = np.array_split(np.log(simulated[timed] / observed[timed]), 2)
    if min(map(len, halves)) < _LEAST_HALF:
        return []
    first, second = (float(half.mean()) for half in halves)
    chance = 1.96 * float(np.sqrt(sum(half.var(ddof=1) / len(half) for half in halves)))
    if abs(second - first) <= max(_CHANGED, chance):
        return []
    told = " and ".join(
        f"{np.expm1(mean):+.1%} in its {name} half" for mean, name in ((first, "first"), (second, "second"))
    )
    return [
        f"the pace of {requests.name} changed: after the first token, simulated times are off by {told} (a machine "
        "whose pace changes makes errors of this size; use a quieter one, or shorter runs in turns)"
    ]


def _check_others(run: Replayable, others: Sequence[Replayable]) -> None:
    """Raise ArgumentError for a run that is the compared one, also as a copy, or of another server."""
    for other in others:
        if other.run.requests == run.run.requests:  # to the picosecond; the meta of a copy may name another file
            raise ArgumentError(
                f"`calibrate` must be another run than `observed`: a fit says nothing of what it was fitted to, got "
                f"{other.name} for {run.name}"
            )
    check_same_server([*others, run] if others else [])
    if others and run.drafts.tokens and not any(other.drafts.tokens for other in others):
        raise ArgumentError(
            f"`calibrate` must have a run that drafts, as `observed` {run.name} does ({run.drafts.policy}): without "
            "one nothing says what drafting takes"
        )


def _notes(meta: ObservedMeta, log: ServingLog) -> list[str]:
    notes = []
    lost = len(log.finished) - int(log.finished.sum())
    if lost:
        notes.append(f"{counted(lost, 'request')} did not finish in the simulator, whose figures are of the others")
    if meta.loop == "closed":
        notes.append("a closed loop is replayed by the times at which its requests were sent")
    target = log.meta.levels[-1]
    if meta.acceptance is not None or target.judged:
        rate = shown(target.accepted / target.judged if target.judged else None, ".1%", unknown="nothing drafted")
        notes.append(f"acceptance: simulated {rate}; observed {acceptance_words(meta.acceptance)}")
    return notes
