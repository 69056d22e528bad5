"""Options of every command that charges seconds, and the cost model they ask for."""

from collections.abc import Sequence
from typing import Annotated

import typer

from ...sim.cost.base import CostModel
from ...sim.cost.make import OnDevice, default_cost, make_cost
from ...traces.rounds.recording import RoundsRecording
from ...traces.tries.recording import TrieRecording
from .named_numbers import named_numbers

CostOption = Annotated[
    str | None,
    typer.Option(
        help="What was measured with the recording (cpu, cuda, timed), a device (a100, h100, h200, b200, l40s, "
        "rtx4090, ...; docs/costs.md) or FILE.json; default: what was measured."
    ),
]
ScaleOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=FACTOR", help="What if this model's seconds were multiplied; once for each model."),
]
TensorParallelOption = Annotated[
    int, typer.Option(help="Devices every model is split over; of a device of the sheet.", min=1)
]
ExtrapolateOption = Annotated[
    bool, typer.Option("--extrapolate", help="Answer beyond what a measured cost was measured for, and say so.")
]


def cost_of(
    name: str | None,
    recording: TrieRecording | RoundsRecording,
    *,
    scale: Sequence[str] | None = None,
    tensor_parallel: int = 1,
    extrapolate: bool = False,
    on: OnDevice | None = None,
    shapes_given: bool = False,
) -> CostModel:
    """The cost model that the options ask for.

    Args:
        name: as `--cost` takes it; None: what was measured with the recording, else a device.
        recording: to be replayed.
        scale: `NAME=FACTOR`, once for each model.
        tensor_parallel: devices every model is split over.
        extrapolate: answer beyond what was measured.
        on: device that measured seconds are taken to.
        shapes_given: whether `--models` gave shapes, which the cost then has to use.

    Raises:
        ValueError: an unknown cost, an option that does not apply to it, or a factor that is none; one line.
    """
    source = recording.meta if isinstance(recording, TrieRecording) else recording
    return make_cost(
        default_cost(source) if name is None else name,
        source,
        tensor_parallel=tensor_parallel,
        scale=factors_of(scale),
        extrapolate=extrapolate,
        on=on,
        shapes_given=shapes_given,
    )


def factors_of(options: Sequence[str] | None) -> dict[str, float]:
    """From `NAME=FACTOR` texts; raises ValueError for one that is none, and for a name given twice."""
    return named_numbers("--scale", "FACTOR", options)
