"""What the loop asks of a world: batched operations, and who carries them out.

Letters: B requests of one operation.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .overlap import levels_of
from .overlap_op import OverlapItem, OverlapOp
from .results import Deferred, DraftResults, Failed, Row, Rows, VerifyResults
from .rules import Signal
from .session import Session
from .steps import Draft, Overlap, Verify
from .tree_ops import TreeDraftOp, TreeItem, TreeVerifyOp
from .trees import DraftTree

# One request's part in an operation. Plain tuples: replay makes one for every step.
DraftItem = tuple[Session, Draft]
VerifyItem = tuple[Session, Verify]
Item = TypeVar("Item", DraftItem, VerifyItem, TreeItem, OverlapItem)
OpStep = Draft | Verify | DraftTree | Overlap  # those that a world carries out


class World(Protocol):
    """Where operations happen: a recording (sim) or models (runtime).

    An operation mutates nothing of the sessions but `place`, where replay goes back to the trunk, and `cached`, by
    `Session.forget_caches`, where it drops a request's KV memory (that may be a request outside this operation), and by
    `Session.hold_prefix`, where its prefix cache holds a text.

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
AnyOp = Op | TreeDraftOp | TreeVerifyOp | OverlapOp


class WaitingOps:
    """Operations that further steps may still join, and steps that were put off. Mutated by all its methods.

    Attributes:
        drafts, verifies, trees, tree_verifies: by level.
        overlaps: by the levels of their parts, and whether the last one drafts.
        held: steps that wait for memory, each with its level.
    """

    __slots__ = ("drafts", "held", "overlaps", "tree_verifies", "trees", "verifies")

    def __init__(self) -> None:
        self.drafts: dict[int, DraftOp] = {}
        self.verifies: dict[int, VerifyOp] = {}
        self.trees: dict[int, TreeDraftOp] = {}
        self.tree_verifies: dict[int, TreeVerifyOp] = {}
        self.overlaps: dict[tuple[tuple[int, ...], bool], OverlapOp] = {}
        self.held: list[tuple[int, Session, OpStep]] = []

    @property
    def empty(self) -> bool:
        """Whether no operation waits that a step may join; held ones left out."""
        return not (self.drafts or self.verifies or self.trees or self.tree_verifies or self.overlaps)

    def join(self, level: int, session: Session, step: OpStep) -> None:
        """Let a step wait for its operation."""
        if isinstance(step, Draft):
            drafts = self.drafts.get(level)  # as below: no operation is made for each step that joins one
            if drafts is None:
                drafts = self.drafts[level] = DraftOp(level, [])
            drafts.items.append((session, step))
        elif isinstance(step, DraftTree):
            self.trees.setdefault(level, TreeDraftOp(level, [])).items.append((session, step))
        elif isinstance(step, Overlap):
            key = levels_of(session, step), step.drafts
            self.overlaps.setdefault(key, OverlapOp(*key, [])).items.append((session, step))
        elif session.tree is not None:
            self.tree_verifies.setdefault(level, TreeVerifyOp(level, [])).items.append((session, step))
        else:
            verifies = self.verifies.get(level)
            if verifies is None:
                verifies = self.verifies[level] = VerifyOp(level, [])
            verifies.items.append((session, step))

    def drop(self, session: Session) -> None:
        """Forget the step of a request, wherever it waits."""
        waiting: list[dict[Any, Any]] = [*self._in_order(), self.overlaps]
        for ops in waiting:
            for key, op in list(ops.items()):
                items: list[Any] = op.items
                items[:] = [item for item in items if item[0] is not session]
                if not items:
                    del ops[key]
        self.held = [step for step in self.held if step[1] is not session]

    def release(self) -> None:
        """Let held steps join their operations again."""
        for level, session, step in self.held:
            self.join(level, session, step)
        self.held.clear()

    def pop(self) -> AnyOp | None:
        """The operation that runs next, held steps with the others if there is no other; None if nothing waits.

        The smallest member runs first, and drafts before it judges, so that the target, the expensive one, meets the
        largest batch. Members at work together come last, those with the smallest ones first.
        """
        if self.empty:
            self.release()
        in_order = self._in_order()
        level = min([level for ops in in_order for level in ops], default=-1)
        if level < 0 and self.overlaps:
            return self.overlaps.pop(min(self.overlaps))
        return next((ops.pop(level) for ops in in_order if level in ops), None)

    def _in_order(self) -> tuple[dict[int, Any], ...]:
        """Operations by level, those first that run first at one level."""
        return self.drafts, self.trees, self.verifies, self.tree_verifies


class SetApart(NamedTuple, Generic[Item, Row]):
    """The requests of one operation by what came of them.

    Attributes:
        ran: requests that got a result.
        rows: their results.
        deferred: requests that did not run.
        reason: why, "" if all ran.
        failed: requests that failed, with their errors.
    """

    ran: list[Item]
    rows: list[Row]
    deferred: list[Item]
    reason: str
    failed: list[tuple[Session, Exception]]


def set_apart(items: Sequence[Item], rows: Rows[Row]) -> SetApart[Item, Row]:
    """Tell results from rows that failed or were deferred."""
    ran: list[Item] = []
    results: list[Row] = []
    deferred: list[Item] = []
    failed: list[tuple[Session, Exception]] = []
    reason = ""
    for item, row in zip(items, rows, strict=True):
        if isinstance(row, Deferred):
            deferred.append(item)
            reason = row.reason
        elif isinstance(row, Failed):
            failed.append((item[0], row.error))
        else:
            ran.append(item)
            results.append(row)
    return SetApart(ran, results, deferred, reason, failed)
