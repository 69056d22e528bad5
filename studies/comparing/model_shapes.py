"""Shapes of an imported recording's models, which costs need and the log does not hold."""

from collections.abc import Mapping, Sequence

from ...traces.recording import Recording


def with_models(recording: Recording, models: Sequence[str] | Mapping[str, str] | None) -> Recording:
    """The recording with the shapes that `models` gives, by name or in the texts that `given_shapes` takes.

    Raises:
        ValueError: as `Recording.with_shapes`.
    """
    if not models:
        return recording
    return recording.with_shapes(
        [f"{name}={shape}" for name, shape in models.items()] if isinstance(models, Mapping) else models
    )
