"""What a kind of session is: how one of them is drawn."""

from random import Random
from typing import NamedTuple, Protocol

from ....arguments import ArgumentError
from ..arrival import Arrival
from ..options import MOST_TURNS, MOST_UNITS

# Of ids within a session, more than it may have units; above them stands its number, and number 0 is what all sessions
# share.
SESSION_BITS = 31


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

    def check_units(self, num_units: int) -> None:
        """Raise ArgumentError for more units of text than a session may have, each of which takes memory."""
        if num_units > MOST_UNITS:
            rule = f"must have at most {MOST_UNITS:,} units of text"
            raise ArgumentError(f"sessions {rule}, got {num_units:,} in session {self.number}")


def check_requests(num_requests: int) -> None:
    """Raise ArgumentError for more requests than a session may have."""
    if num_requests > MOST_TURNS:
        raise ArgumentError(f"sessions must have at most {MOST_TURNS:,} requests, got {num_requests:,}")


class SessionKind(Protocol):
    """A kind of session; a frozen record of what its text says."""

    def begin(self, place: Place, rng: Random) -> Arrival:
        """Draw a session; returns its first request, which knows the others. Raises as `Place.check_units`."""
        ...

    @property
    def num_requests(self) -> int | None:
        """Of each session; None where that is drawn."""
        ...
