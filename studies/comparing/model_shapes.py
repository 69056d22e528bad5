"""Shapes of an imported recording's models, which costs need and the log does not hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...arguments import ArgumentError
from ...traces.rounds.recording import RoundsRecording
from ...traces.shapes import given_shapes
from ...traces.tries.recording import TrieRecording


def with_models(
    recording: TrieRecording | RoundsRecording, models: Sequence[str] | Mapping[str, str] | None
) -> TrieRecording | RoundsRecording:
    """The recording with the shapes that `models` gives, by name or in the texts that `given_shapes` takes.

    Raises:
        ArgumentError: a recording that holds its own shapes, or a member that it has not.
        ValueError: texts that are no shapes.
    """
    if not models:
        return recording
    if isinstance(recording, TrieRecording):
        raise ArgumentError(
            f"`models` is for imported recordings; {recording.meta.name} holds the shapes of its models"
        )
    meta = recording.meta
    texts = [f"{name}={shape}" for name, shape in models.items()] if isinstance(models, Mapping) else models
    shapes = given_shapes(texts, meta.target)
    members = (*meta.drafter_names, meta.target)
    unknown = [shape.name for shape in shapes if shape.name not in members]
    if unknown:
        raise ArgumentError(f"`models` must name members of the recording ({', '.join(members)}), got {unknown[0]!r}")
    given = {shape.name: shape for shape in (*meta.models, *shapes)}
    return replace(recording, meta=meta.model_copy(update={"models": tuple(given.values())}))
