"""`--on` and `--measured-on` of `paceline compare`: measured seconds on another device, and between which figures."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ...reports.comparison import Comparison
from ...reports.device_range import DeviceRange, device_range_table
from ...reports.tables.grid import Grid
from ...sim.cost import CostModel, OnDevice, Reading, measured_on_device
from ...studies.comparing import side_by_side
from ...studies.policy_runs import run_policies
from ...studies.scenarios import Scenarios
from ...traces.rounds.recording import RoundsRecording
from ...traces.tries.recording import TrieRecording

OUTER = (Reading.all, Reading.memory)
OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="DEVICE",
        help="Take measured seconds (--cost timed, cuda) to this device of the sheet; prints a range, too.",
    ),
]
MeasuredOnOption = Annotated[
    str | None,
    typer.Option(
        "--measured-on", metavar="DEVICE", help="Of --on: what was measured on, if the recording does not say."
    ),
]


def on_device(device: str | None, measured_on: str | None) -> OnDevice | None:
    """What the options ask for; raises ValueError for `--measured-on` alone."""
    if device is not None:
        return OnDevice(device=device, measured_on=measured_on)
    if measured_on is not None:
        raise ValueError(f"--measured-on goes with --on DEVICE, got --measured-on {measured_on}")
    return None


def device_views(
    on: OnDevice | None,
    recording: TrieRecording | RoundsRecording,
    scenarios: Scenarios,
    names: Sequence[str],
    cost_at: Callable[[OnDevice], CostModel],
    *,
    baseline: str,
    lossless: bool,
) -> tuple[list[Grid], dict[str, Any]]:
    """(tables, JSON keys) of the policies under the outer readings, at the seeds of the comparison.

    Args:
        on: the device; None asks for nothing.
        recording: that is replayed.
        scenarios: of the comparison.
        names: of the policies that the comparison has figures of.
        cost_at: the cost model under a reading.
        baseline: name of the target alone.
        lossless: whether only lossless policies were asked for.
    """
    if on is None:
        return [], {}
    found: dict[str, Comparison] = {}
    left_out = []
    for reading in OUTER:
        outer = scenarios.with_cost(cost_at(replace(on, reading=reading)))
        runs = run_policies(outer, names, baseline=baseline, log=None, partial=True, lossless=lossless)
        found[reading.value] = side_by_side(runs, names, {})
        refused = [(name, error) for name, error in runs.refused.items() if name in names]
        left_out += [f"{name} is left out, {reading.value} scales: {error}" for name, error in refused]
    between = DeviceRange(
        measured_on=measured_on_device(recording.meta if isinstance(recording, TrieRecording) else recording, on) or "",
        device=on.device,
        readings=found,
        left_out=tuple(left_out),
    )
    return [device_range_table(between)], {"on": between.to_json()}
