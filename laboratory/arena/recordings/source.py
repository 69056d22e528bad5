"""What makes a recording of the arena: the protocol of every kind of source."""

from pathlib import Path
from typing import Protocol


class RecordingUnavailableError(ValueError):
    """A recording that cannot be had on this machine, such as one of absent logs; the arena leaves it out by name."""


class Shelf(Protocol):
    """Where finished recordings stand; sources that are made of others ask it for them."""

    @property
    def work(self) -> Path:
        """The folder below which everything is kept."""

    def recording(self, name: str) -> Path:
        """The finished .trace folder of a recording of the catalogue, made if need be."""


class Source(Protocol):
    """One way to make a recording; a frozen dataclass of settings."""

    @property
    def slow(self) -> bool:
        """Whether making it takes minutes, so that it is made only where somebody asks for that."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Recordings of the catalogue that it is made of."""

    def recipe(self) -> object:
        """All that decides what comes out, save the recordings it needs: something that JSON can hold.

        The code that makes it is part of it where that takes seconds; what is trained is not trained anew for a change
        of code that may be none to it. A finished recording is used again only where this is the same.

        Raises:
            RecordingUnavailableError: it cannot be had on this machine.
        """

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Write the recording.

        Args:
            out: the .trace folder to write; not there yet. What a later call could go on from may be kept beside it.
            name: what the recording is called in its meta.
            shelf: has the recordings that it needs.

        Raises:
            RecordingUnavailableError: it cannot be had on this machine.
        """


class QuickSource:
    """A source that is made in seconds and of no other recording."""

    @property
    def slow(self) -> bool:
        """No."""
        return False

    @property
    def needs(self) -> tuple[str, ...]:
        """None."""
        return ()
