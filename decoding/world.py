"""What the loop asks of a world: batched operations, and who carries them out.

Letters: B requests of one operation.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .contract import Draft, Verify
from .results import DraftResults, VerifyResults
from .session import Session
from .signal import Signal

# One request's part in an operation. Plain tuples: replay makes one for every step.
DraftItem = tuple[Session, Draft]
VerifyItem = tuple[Session, Verify]


class World(Protocol):
    """Where operations happen: a recording (sim) or models (runtime).

    An operation mutates nothing of the sessions but `place`, where replay goes back to the trunk, and `cached`, by
    `Session.forget_caches`, where it drops a request's KV memory; that may be a request outside this operation.

    A row may be Failed or Deferred. A deferred row leaves its session as it was, save for dropped caches, and comes
    back when another request has left the loop or nothing else is left to run. Then there must be memory for one of
    them: a world that goes on deferring fails the request.
    """

    def open(self, session: Session) -> None:
        """Prepare a request: set `session.place` to the place of its prompt."""
        ...

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Let the member at `level` draft for `[B]` requests."""
        ...

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Let the member at `level` judge what is pending in `[B]` requests."""
        ...

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        ...

    def close(self, session: Session) -> None:
        """Release what the world holds for a request that is done or failed."""
        ...


class DraftOp(NamedTuple):
    """A batched draft.

    Attributes:
        level: the member that drafts.
        items: `[B]`.
    """

    level: int
    items: list[DraftItem]

    def run(self, world: World) -> DraftResults:
        """Let a world carry it out."""
        return world.draft(self.level, self.items)


class VerifyOp(NamedTuple):
    """A batched verification.

    Attributes:
        level: the member that judges.
        items: `[B]`.
    """

    level: int
    items: list[VerifyItem]

    def run(self, world: World) -> VerifyResults:
        """Let a world carry it out."""
        return world.verify(self.level, self.items)


Op = DraftOp | VerifyOp
