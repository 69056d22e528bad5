"""How true simulated latencies are beside those of a running server: what `paceline validate --observed` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...arguments import ArgumentError, check_within
from ...counted import counted
from ...reports.observed.comparison import ObservedCell, cells_table, compared, verdict
from ...reports.observed.tables import acceptance_words
from ...reports.tables.grid import Grid, shown
from ...reports.tables.printed import Printed
from ...runs.observed.bench_result import FOLLOWS, read_run
from ...runs.observed.meta import ObservedMeta, ObservedRun
from ...runs.serving.log import ServingLog
from ...traces.recording import Recording
from .calibrate import Calibration, calibrate
from .replay import ReplayedRequests, Replayer, replayed_requests


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ObservedValidation(Printed):
    """Simulated and observed figures of a run; prints as `paceline validate --observed` does.

    Attributes:
        meta: what was compared: run, server, cluster, policy, cost, bounds, notes.
        calibration: whose seconds the simulator took; None: those of the cluster, or of a cost.
        cells: each figure.
    """

    meta: Mapping[str, Any]
    calibration: Calibration | None
    cells: tuple[ObservedCell, ...]

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
        observed: folder that `paceline observe --out` wrote, or the detailed result of a serving benchmark, which is
            judged.
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
    replayer = Replayer(cluster, policy, recording, cost=cost, seed=seed)
    other = None if calibrate_on is None else read_run(Path(calibrate_on))
    fitted = None if other is None else _fitted(other, str(calibrate_on), run, name, replayer)
    priced = replayer if fitted is None else replayer.priced(fitted.cost)
    log = priced.served(requests)
    judged = ObservedRun(run.meta, requests.requests)
    meta = {
        "observed": name,
        "url": run.meta.url,
        "model": run.meta.model,
        "requests": len(requests.requests),
        "cluster": priced.cluster_name,
        "policy": log.meta.about.policy,
        "cost": priced.cost_names,
        "seed": seed,
        "notes": [*_of_results(other, run), *_notes(run.meta, log), *_about_requests(requests)],
    }
    cells = compared(judged, log, mean_bound=mean_bound, tail_bound=tail_bound)
    return ObservedValidation(meta=meta, calibration=fitted, cells=cells)


def _of_results(*runs: ObservedRun | None) -> list[str]:
    """What must be known of runs that were read from results of benchmarks."""
    return list(dict.fromkeys(note for run in runs if run is not None for note in run.meta.notes if note == FOLLOWS))


def _fitted(run: ObservedRun, called: str, judged: ObservedRun, name: str, replayer: Replayer) -> Calibration:
    """Seconds of another run; raises ArgumentError where it is the same one, also as a copy."""
    if run.meta == judged.meta and run.requests == judged.requests:
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


def _fitted_words(found: Calibration) -> str:
    line = found.line
    return (
        f"calibrated on {found.run}: a forward of {found.member} takes {1e3 * line.intercept_s:.4g} ms + "
        f"{1e3 * line.per_new_token_s:.4g} ms for each token fed + {1e6 * line.per_kv_token_s:.4g} us for each token "
        f"held; there simulated times are off by {found.misfit:.1%} on average"
    )
