"""Opening a recording, the shipped one unless another is named."""

from pathlib import Path

from ..shipped import shipped
from ..traces.open_recording import open_recording as read_recording
from ..traces.rounds.recording import RoundsRecording
from ..traces.tries.recording import TrieRecording

Recorded = TrieRecording | RoundsRecording


def open_recording(path: str | Path | None = None) -> Recorded:
    """Read a recording, of contexts or of an imported log.

    Args:
        path: a .trace folder; None for the recording that comes with the package.

    Raises:
        TraceFormatError: no recording, or one that breaks the format; names the path and what is wrong.
    """
    return read_recording(shipped("recordings", "pico.trace") if path is None else Path(path))
