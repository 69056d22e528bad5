"""Opening a recording, the shipped one unless another is named."""

from pathlib import Path

from ..shipped import shipped
from ..traces.forms import open_recording as read_recording
from ..traces.recording import Recording


def open_recording(path: str | Path | None = None) -> Recording:
    """Read a recording, of contexts or of an imported log.

    Args:
        path: a .trace folder; None for the recording that comes with the package.

    Raises:
        TraceFormatError: no recording, or one that breaks the format; names the path and what is wrong.
    """
    return read_recording(shipped("recordings", "pico.trace") if path is None else Path(path))
