"""Opening a recording, the shipped one unless another is named."""

from pathlib import Path

from ..shipped import recording_path
from ..traces.forms import open_recording as read_recording
from ..traces.recording import Recording


def open_recording(path: str | Path | None = None) -> Recording:
    """Read a recording, of contexts or of an imported log.

    Args:
        path: a .trace folder, or the name of a recording that comes with the package; None for the default one.

    Raises:
        TraceFormatError: no recording, or one that breaks the format; names the path and what is wrong.
    """
    return read_recording(recording_path(path))
