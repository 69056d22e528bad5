"""Which requests begin with the target's prefill, and what waits for it.

All drafts of a request may have to wait for the prefill, none, or those of some members. Then the policy's first step
decides: it is kept while the prefill runs, so that nobody is asked twice.
"""

from .contract import Verify
from .pool import Pool
from .session import Session
from .world import Item


class Prefills:
    """The requests of a loop that have not begun yet.

    Args:
        pool: the members.

    Attributes:
        step: the prefill; known by identity, so that no policy's step is taken for it.
        undecided: ids of requests in which the first step decides whether a prefill comes before it.
    """

    __slots__ = ("_kept", "step", "undecided")

    def __init__(self, pool: Pool) -> None:
        self.step = Verify(pool.target)
        self.undecided: set[str] = set()
        self._kept: dict[str, Item] = {}

    def due_first(self, session: Session) -> bool:
        """Whether a new request begins with the prefill, before its policy is asked; else its first step may wait."""
        if session.prefills_first:
            return True
        if any(session.prefill_before):
            self.undecided.add(session.request_id)
        return False

    def due_before(self, item: Item, level: int) -> bool:
        """Whether a policy's step has to wait for the prefill, which is due then; the step is kept."""
        session, step = item
        if session.request_id not in self.undecided:
            return False
        self.undecided.remove(session.request_id)
        if not session.prefills_before(step, level):
            return False
        self._kept[session.request_id] = item
        return True

    def waiting(self, request_id: str) -> Item | None:
        """The step that waited for the prefill that has just run, if one did; a draft, and it waits no more."""
        return self._kept.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A request is done or failed."""
        self.undecided.discard(request_id)
        self._kept.pop(request_id, None)
