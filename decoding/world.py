"""What the loop and a world say to each other: operations, what came of them, and who carries them out.

Letters: B requests of one operation.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .contract import Draft, Verify
from .results import Drafted, Judged
from .session import Session
from .signal import Signal


class Item(NamedTuple):
    """One request's part in an operation."""

    session: Session
    step: Draft | Verify


class Op(NamedTuple):
    """One batched operation: the same kind of step by the same member, for B requests.

    Attributes:
        level: the member that runs.
        verify: a Verify; else a Draft.
        items: `[B]`.
    """

    level: int
    verify: bool
    items: list[Item]


# Forwards of one shape inside an operation: requests in each, tokens fed in each over all rows, how many in a row, and
# seconds of one. One without tokens is no forward: seconds that the operation takes once, besides its forwards. A
# drafter that writes its whole draft at once has one forward, as wide as the draft. A plain tuple: replay makes two for
# every step.
Forward = tuple[int, int, int, float]


class Failed(NamedTuple):
    """In place of a row's result: the request cannot go on. It leaves the loop; the others are not touched."""

    error: Exception


class Deferred(NamedTuple):
    """In place of a row's result: the row did not run, since memory was short. The same step is tried again later."""

    reason: str


class Results(NamedTuple):
    """What a world did.

    Attributes:
        rows: `[B]`, a Drafted or a Judged each, or that the row failed or was deferred.
        forwards: what ran, deferred rows left out.
        duration_s: of the operation, seconds.
        free_kv_share: share of KV memory that is free behind the operation, 0 to 1.
    """

    rows: Sequence[Drafted | Judged | Failed | Deferred]
    forwards: list[Forward]
    duration_s: float
    free_kv_share: float = 1.0


class World(Protocol):
    """Where operations happen: a recording (sim) or models (runtime)."""

    def open(self, session: Session) -> None:
        """Prepare a request: set `session.place` to the place of its prompt."""
        ...

    def execute(self, op: Op) -> Results:
        """Carry out an operation.

        Mutates nothing of the sessions but `place`, where replay goes back to the trunk, and `cached`, by
        `Session.forget_caches`, where it drops a request's KV memory; that may be a request outside this operation.

        A row may be Failed or Deferred. A deferred row leaves its session as it was, save for dropped caches, and comes
        back when another request has left the loop or nothing else is left to run. Then there must be memory for one of
        them: a world that goes on deferring fails the request.
        """
        ...

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        ...

    def close(self, session: Session) -> None:
        """Release what the world holds for a request that is done or failed."""
        ...
