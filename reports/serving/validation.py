"""How far simulated latencies under load are from those that real models took, cell by cell.

A cell is a policy at a rate of arrivals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ...runs.serving.log import ServingLog
from .metrics import metrics_of
from .slo.promises import Promises

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
PARTS = ("mean", "p50", "p90", "p99")
THROUGHPUT = "output_tokens_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCell:
    """One cell in both worlds.

    Attributes:
        policy: by name.
        rate: mean arrivals per second asked for; None: the workload's own.
        requests: that arrived.
        finished: in the simulator, and with the models.
        preemptions: likewise.
        simulated: figures by name, `LATENCIES` and `PARTS` joined by an underscore, and `THROUGHPUT`; seconds and
            tokens per second; one that no request has is left out.
        measured: the same with the models, medians of the runs.
        spread: half the range of the measured runs' mean E2E as a share of its median.
        other_answers: requests that finished in both worlds with other tokens.
        left: requests whose models wrote another token than was recorded, in any run.
        emitted, cycled: simulated tokens, and those after the first pass of a recorded answer.
        modelled: simulated decisions that were modelled rather than replayed.
        equal: whether members judged, accepted and wrote as many tokens in both worlds, level by level.
    """

    policy: str
    rate: float | None
    requests: int
    finished: tuple[int, int]
    preemptions: tuple[int, int]
    simulated: Mapping[str, float]
    measured: Mapping[str, float]
    spread: float
    other_answers: int
    left: int
    emitted: int
    cycled: int
    modelled: int
    equal: bool

    def error(self, name: str) -> float | None:
        """Relative error of a figure; None where a world has none."""
        ours, theirs = self.simulated.get(name), self.measured.get(name)
        return None if ours is None or not theirs else ours / theirs - 1

    def errors(self) -> dict[str, float | None]:
        """Of all figures."""
        return {name: self.error(name) for name in FIGURES}


FIGURES = (*(f"{latency}_{part}" for latency in LATENCIES for part in PARTS), THROUGHPUT)


def figures_of(log: ServingLog) -> dict[str, float]:
    """The figures of a run; those that no request has are left out."""
    found = metrics_of(log, Promises()).to_json()
    figures: dict[str, float | None] = {
        f"{latency}_{part}": None if found[latency] is None else found[latency][part]
        for latency in LATENCIES
        for part in PARTS
    }
    figures[THROUGHPUT] = found[THROUGHPUT]
    return {name: figure for name, figure in figures.items() if figure is not None}


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure that all runs have."""
    return {name: median(run[name] for run in runs) for name in runs[0] if all(name in run for run in runs)}


def half_range(values: Sequence[float]) -> float:
    """Half of what values range over, as a share of their median; 0 without any."""
    return (max(values) - min(values)) / 2 / median(values) if values and median(values) else 0.0


def worst_and_median(cells: Sequence[LoadCell]) -> dict[str, Any]:
    """Absolute errors of each figure over all cells: `median` and `worst`."""
    found = {}
    for name in FIGURES:
        errors = [abs(error) for cell in cells if (error := cell.error(name)) is not None]
        if errors:
            found[name] = {"median": median(errors), "worst": max(errors)}
    return found
