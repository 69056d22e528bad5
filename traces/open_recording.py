"""A recording of whichever form lies in a folder."""

from pathlib import Path

from .folder import IMPORTED, kind_of
from .recording import Recording
from .rounds.store import read_rounds
from .tries.store import read_trace


def open_recording(path: Path) -> Recording:
    """Read a recording of either form, as its `meta.json` says; raises TraceFormatError."""
    return read_rounds(path) if kind_of(path) == IMPORTED else read_trace(path)
