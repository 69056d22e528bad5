"""A recording of whichever kind lies in a folder."""

from pathlib import Path

from .folder import IMPORTED, kind_of
from .imported.rounds import RoundsTrace
from .imported.store import read_rounds
from .store import read_trace
from .trie import Trace


def open_recording(path: Path) -> Trace | RoundsTrace:
    """Read a recording of either kind, as its `meta.json` says; raises TraceFormatError."""
    return read_rounds(path) if kind_of(path) == IMPORTED else read_trace(path)
