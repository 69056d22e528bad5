"""What a kind of session is: how one of them is drawn."""

from random import Random
from typing import NamedTuple, Protocol

from ..arrival import Arrival

SESSION_BITS = 24  # of ids within a session; above them stands its number, and number 0 is what all sessions share


class Place(NamedTuple):
    """Which session is drawn, and how its requests are to be.

    Attributes:
        number: of the session, from 1; its first request is called by it.
        arrives_ps: of that request.
        unit_tokens: of its blocks.
        tag: of its requests.
        slo: of its requests.
    """

    number: int
    arrives_ps: int
    unit_tokens: int
    tag: str
    slo: str

    @property
    def first_id(self) -> int:
        """The first id that is the session's own."""
        return self.number << SESSION_BITS


class SessionKind(Protocol):
    """A kind of session; a frozen record of what its text says."""

    def begin(self, place: Place, rng: Random) -> Arrival:
        """Draw a session; returns its first request, which knows the others."""
        ...

    @property
    def num_requests(self) -> int | None:
        """Of each session; None where that is drawn."""
        ...
