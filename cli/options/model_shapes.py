"""`--models` of commands on imported recordings: shapes that the log does not hold."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from ...traces.rounds.recording import RoundsRecording
from ...traces.shapes import given_shapes
from ...traces.tries.recording import TrieRecording

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--models",
        metavar="NAME=PRESET|NAME=CONFIG|FILE",
        help="Shapes for costs: a preset (target=llama-3.1-8b, drafter=eagle3), a Hugging Face config.json or its "
        "folder, or a JSON list of shapes; repeatable.",
    ),
]


def with_models(
    recording: TrieRecording | RoundsRecording, texts: Sequence[str] | None
) -> TrieRecording | RoundsRecording:
    """The recording with the shapes that `--models` gives.

    Raises:
        ValueError: a recording that holds its own shapes, a member that it has not, or texts that are no shapes.
    """
    if not texts:
        return recording
    if isinstance(recording, TrieRecording):
        raise ValueError(f"--models is for imported recordings; {recording.meta.name} holds the shapes of its models")
    meta = recording.meta
    shapes = given_shapes(texts, meta.target)
    members = (*meta.drafter_names, meta.target)
    unknown = [shape.name for shape in shapes if shape.name not in members]
    if unknown:
        raise ValueError(f"--models must name members of the recording ({', '.join(members)}), got {unknown[0]!r}")
    given = {shape.name: shape for shape in (*meta.models, *shapes)}
    return replace(recording, meta=meta.model_copy(update={"models": tuple(given.values())}))
