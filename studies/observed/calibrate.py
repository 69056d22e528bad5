"""Seconds of a server, fitted to what was observed of it: those with which the simulator repeats a run best.

A forward takes `intercept_s + per_new_token_s x new tokens + per_kv_token_s x tokens held` (a line of docs/costs.md).
The three figures are moved in turn, by factors that shrink, until no move brings simulated times nearer to the observed
ones: a search by pattern (Hooke and Jeeves 1961). It needs no gradient, which queues and batches do not have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import median

import numpy as np

from ...progress import Progress
from ...reports.observed.figures import tpot_ps
from ...runs.observed.request import ObservedRequest
from ...runs.serving.log import ServingLog
from ...sim.cost.cost_file import FileCost
from ...sim.cost.figures import CostLine
from ...traces.workloads.exact_seconds import PS_PER_S
from .replay import ReplayedRequests, Replayer

_FIRST_FACTOR, _LAST_FACTOR = 2.0, 1.005
_MOST_ROUNDS = 60
_LEAST_S = 1e-9
_Figures = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a fit came to.

    Attributes:
        run: that it was fitted to.
        member: whose forwards the line is of.
        line: of seconds.
        misfit: mean size of the natural logarithm of simulated over observed times, over TTFT and the time from there
            to the end of each request; 0.1 is about 10%.
        tried: runs of the simulator.
    """

    run: str
    member: str
    line: CostLine
    misfit: float
    tried: int

    @property
    def cost(self) -> FileCost:
        """As the simulator takes it."""
        return FileCost(f"calibrated on {self.run}", {self.member: self.line})


def calibrate(requests: ReplayedRequests, replayer: Replayer) -> Calibration:
    """Fit the seconds of the target's forwards to an observed run.

    Args:
        requests: of that run.
        replayer: with the cluster and the policy; its own seconds are not used.

    Raises:
        ValueError: what the simulator refuses.
    """
    observed = _observed(requests.requests)
    tried = 0

    def misfit(figures: _Figures) -> float:
        nonlocal tried
        tried += 1
        cost = _fitted(requests, replayer, figures).cost
        return _misfit(requests, observed, replayer.priced(cost).served(requests))

    with Progress("calibrating", unit="runs") as progress:
        figures, least = _searched(_first(requests.requests), misfit, progress.advance)
    found = _fitted(requests, replayer, figures)
    return Calibration(run=found.run, member=found.member, line=found.line, misfit=least, tried=tried)


def _fitted(requests: ReplayedRequests, replayer: Replayer, figures: _Figures) -> Calibration:
    intercept_s, per_new_token_s, per_kv_token_s = figures
    line = CostLine(intercept_s=intercept_s, per_new_token_s=per_new_token_s, per_kv_token_s=per_kv_token_s)
    return Calibration(run=requests.name, member=replayer.target, line=line, misfit=0.0, tried=0)


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
