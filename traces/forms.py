"""The two forms of a recording, and the one place that tells them apart, in memory and in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .contexts.recording import TrieRecording
from .contexts.store import read_trace
from .folder import IMPORTED, kind_of
from .recording import Recording
from .rounds.recording import RoundsRecording
from .rounds.store import read_rounds

OfTries = TypeVar("OfTries")
OfRounds = TypeVar("OfRounds")


def open_recording(path: Path) -> Recording:
    """Read a recording of either form, as its `meta.json` says; raises TraceFormatError."""
    return read_rounds(path) if kind_of(path) == IMPORTED else read_trace(path)


def is_recording(value: object) -> bool:
    """Whether a value is a recording, of either form."""
    return isinstance(value, TrieRecording | RoundsRecording)


def by_form(
    recording: Recording, *, tries: Callable[[TrieRecording], OfTries], rounds: Callable[[RoundsRecording], OfRounds]
) -> OfTries | OfRounds:
    """What is made of a recording by its form: replay walks other tables of a trie than of rounds, for one.

    Raises:
        TypeError: a recording of neither form.
    """
    if isinstance(recording, TrieRecording):
        return tries(recording)
    if isinstance(recording, RoundsRecording):
        return rounds(recording)
    raise TypeError(f"a recording must hold tries or rounds, got {type(recording).__name__}")
