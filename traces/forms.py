"""The two forms of a recording, and the one place that tells them apart."""

from collections.abc import Callable
from typing import TypeVar

from .recording import Recording
from .rounds.recording import RoundsRecording
from .tries.recording import TrieRecording

OfTries = TypeVar("OfTries")
OfRounds = TypeVar("OfRounds")


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
