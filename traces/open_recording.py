"""A recording of whichever kind lies in a folder."""

from pathlib import Path

from .folder import IMPORTED, kind_of
from .rounds.recording import RoundsRecording
from .rounds.store import read_rounds
from .tries.recording import TrieRecording
from .tries.store import read_trace


def open_recording(path: Path) -> TrieRecording | RoundsRecording:
    """Read a recording of either kind, as its `meta.json` says; raises TraceFormatError."""
    return read_rounds(path) if kind_of(path) == IMPORTED else read_trace(path)
