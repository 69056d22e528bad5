"""How requests begin: with the target's prefill, as in engines, or with a draft on the bare prompt.

All drafts of a request may have to wait for the prefill, none, or those of some members. Then the policy's first step
decides: it is kept while the prefill runs, so that nobody is asked twice.
"""

from enum import StrEnum

from ..arguments import ArgumentError
from .contract import Draft, Overlap, Step, Verify
from .pool import Pool
from .session import READER, Session
from .trees.draft_tree import DraftTree


class Start(StrEnum):
    """Where a request's first token comes from.

    Attributes:
        prefill: the target reads the prompt and writes the first token; drafts come after it. What engines do.
        draft: a policy may draft on the bare prompt; the first verification reads the prompt as well.
        recorded: as each method of an imported log began.
    """

    prefill = "prefill"
    draft = "draft"
    recorded = "recorded"


def start_of(given: str) -> Start:
    """A start by its name; raises ArgumentError for any other text."""
    if given not in set(Start):
        raise ArgumentError(f"`start` must be one of {', '.join(Start)}, got {given!r}")
    return Start(given)


def prefill_before(start: str, pool: Pool, *, what: str = "this run") -> tuple[bool, ...]:
    """`[L]` for the sessions of a pool of L members: whether a draft by each comes after the target's prefill.

    Args:
        start: `prefill` or `draft`, as text or as a `Start`, the same for every member.
        pool: the members.
        what: is run, for the error.

    Raises:
        ArgumentError: `recorded`, which only a log can answer; `draft` beside a member that reads the target's states.
    """
    begins = start_of(start)
    if begins is Start.recorded:
        raise ArgumentError(
            f"`start` must be prefill or draft for {what}, which holds no start of its own, got {begins}"
        )
    if begins is Start.draft and pool.feature_level is not None:
        reader = pool.names[pool.feature_level]
        raise ArgumentError(f"`start` must be prefill beside {reader}, {READER}, got {begins}")
    return (begins is Start.prefill,) * len(pool.members)


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
        self._kept: dict[str, Draft | DraftTree | Overlap] = {}

    def due_first(self, session: Session) -> bool:
        """Whether a new request begins with the prefill, before its policy is asked; else its first step may wait."""
        if session.prefills_first:
            return True
        if any(session.prefill_before):
            self.undecided.add(session.request_id)
        return False

    def due_before(self, session: Session, step: Step, level: int) -> bool:
        """Whether a policy's step has to wait for the prefill, which is due then; the step is kept."""
        if session.request_id not in self.undecided:
            return False
        self.undecided.remove(session.request_id)
        if not (isinstance(step, Draft | DraftTree | Overlap) and session.prefills_before(step, level)):
            return False
        self._kept[session.request_id] = step
        return True

    def waiting(self, request_id: str) -> Draft | DraftTree | Overlap | None:
        """The step that waited for the prefill that has just run, if one did; it waits no more."""
        return self._kept.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """A request is done or failed."""
        self.undecided.discard(request_id)
        self._kept.pop(request_id, None)
