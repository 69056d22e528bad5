"""Open a recording of either form: the only place that distinguishes the two, in memory and in a folder."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypeVar, cast

from .contexts.on_disk import read_trace
from .contexts.recording import TrieRecording
from .folder import IMPORTED, kind_of
from .recording import Recording
from .rounds.recording import RoundsRecording

OfTries = TypeVar("OfTries")
OfRounds = TypeVar("OfRounds")


def open_recording(path: Path) -> Recording:
    """Read a recording of either form, by its `meta.json`; raises TraceFormatError."""
    if kind_of(path) == IMPORTED:  # imported only if needed
        return cast(Recording, vars(import_module(".rounds.on_disk", __package__))["read_rounds"](path))
    return read_trace(path)


def is_recording(value: object) -> bool:
    """Whether a value is a recording, of either form."""
    return isinstance(value, TrieRecording | RoundsRecording)


def by_form(
    recording: Recording, *, tries: Callable[[TrieRecording], OfTries], rounds: Callable[[RoundsRecording], OfRounds]
) -> OfTries | OfRounds:
    """Apply the function for a recording's form: replay, for example, uses other tables for a trie than for rounds.

    Raises:
        TypeError: a recording of neither form.
    """
    if isinstance(recording, TrieRecording):
        return tries(recording)
    if isinstance(recording, RoundsRecording):
        return rounds(recording)
    raise TypeError(f"a recording must hold tries or rounds, got {type(recording).__name__}")
