"""Whoever looks on while a served run goes: told how far it is, and asked whether it is to stop."""

from typing import Protocol


class Watcher(Protocol):
    """Looks on; has no say in what happens but whether it goes on."""

    def ended(self) -> None:
        """One request more has finished, or was rejected."""
        ...

    def interrupted(self) -> bool:
        """Whether the run is to stop; asked where all that was recorded goes together.

        That is before a request comes, and after every operation of a replica that runs in its turn.
        """
        ...


class Nobody:
    """Looks away."""

    def ended(self) -> None:
        """See `Watcher`."""

    def interrupted(self) -> bool:
        """See `Watcher`: never."""
        return False


class InterruptedRunError(Exception):
    """The watcher wants the run to stop."""


def stop_if_interrupted(watcher: Watcher) -> None:
    """Raise InterruptedRunError if the run is to stop."""
    if watcher.interrupted():
        raise InterruptedRunError
