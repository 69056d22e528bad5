"""Recordings on a command line: a folder, or the name of one that comes with the package."""

from pathlib import Path

from ...shipped import recording_path


def named_recording(given: Path | None) -> Path | None:
    """Callback of options that take a recording; none stays none."""
    return None if given is None else recording_path(given)
