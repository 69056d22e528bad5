"""Whoever looks on while a served run goes: told how far it is, and asked whether it is to stop."""

from typing import Protocol


class Watcher(Protocol):
    """Looks on; has no say in what happens but whether it goes on."""

    def ended(self) -> None:
        """One request more has finished, or was rejected."""
        ...

    def interrupted(self) -> bool:
        """Whether the run is to stop; asked after every operation, where all that was recorded goes together."""
        ...


class Nobody:
    """Looks away."""

    def ended(self) -> None:
        """See `Watcher`."""

    def interrupted(self) -> bool:
        """See `Watcher`: never."""
        return False
