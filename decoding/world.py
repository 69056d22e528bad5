"""What the loop needs of a world: batched operations, what carries them out, and which of them run next.

A world may reject token trees and members that work ahead (`Overlap`). Letters: B requests of one operation, P parts of
an `Overlap`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .overlap import levels_of
from .results import DraftResults, OverlapResults, Results, VerifyResults
from .rules import Signal
from .session import Session
from .steps import Draft, Overlap, UnknownHereError, Verify
from .trees import DraftTree

# One request's part in an operation. Plain tuples: replay makes one for every step.
DraftItem = tuple[Session, Draft]
VerifyItem = tuple[Session, Verify]
TreeItem = tuple[Session, DraftTree]
OverlapItem = tuple[Session, Overlap]
OpStep = Draft | Verify | DraftTree | Overlap  # those that a world carries out
_OF_SOME = (DraftTree, Overlap)  # worlds


class World(Protocol):
    """Where operations happen: a recording (sim) or models (runtime).

    An operation mutates nothing of the sessions but `place`, where replay re-anchors, and `cached`: by
    `Session.forget_caches`, where it drops a request's KV memory (perhaps of a request outside this operation), and by
    `Session.hold_prefix`, where its prefix cache holds a text.

    A row may be Failed or Deferred. A deferred row leaves its session as it was, except for dropped caches, and is
    tried again when another request has left the loop or nothing else is left to run. If the world then continues to
    defer, the loop fails the request.
    """

    def open(self, session: Session) -> None:
        """Prepare a request: set `session.place` to the place of its prompt."""

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Let the member at `level` draft for `[B]` requests."""

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Let the member at `level` judge what is pending in `[B]` requests."""

    def signal(self, session: Session, index: int) -> Signal:
        """How sure the drafter was of the pending token at `index`."""

    def close(self, session: Session) -> None:
        """Release what the world holds for a request that is done or failed."""


@runtime_checkable
class TreeWorld(Protocol):
    """Drafts trees and judges them; `World` describes its operations."""

    def check_tree(self, level: int) -> None:
        """Raises ValueError where the member at `level` drafts no trees here, with the reason."""

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Let the member at `level` draft trees for `[B]` requests; rows have a `tree`."""

    def verify_trees(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Let the member at `level` judge the trees that are pending in `[B]` requests; rows have a `path`."""


@runtime_checkable
class AheadWorld(Protocol):
    """Carries out every part of an `Overlap`; `World` describes its operations."""

    def check_ahead(self) -> None:
        """Raises ValueError where no member may work ahead in this run, with the reason."""

    def overlap(self, levels: tuple[int, ...], items: Sequence[OverlapItem]) -> OverlapResults:
        """Let the members at `levels` do their parts for `[B]` requests, at the same time or not."""


def check_known(world: object, step: object, level: int) -> None:
    """Raise UnknownHereError for a tree or an Overlap in a world that does not carry it out."""
    if not isinstance(step, _OF_SOME):
        return
    where = "under load, on imported rounds and in forced runs"
    try:
        if isinstance(step, DraftTree):
            if not isinstance(world, TreeWorld):
                raise ValueError(f"token trees are not known here: {where} there are none")
            world.check_tree(level)
        else:
            if not isinstance(world, AheadWorld):
                raise ValueError(f"no member works ahead here: {where} a request runs one step at a time")
            world.check_ahead()
    except ValueError as error:
        raise UnknownHereError(str(error)) from error


# Kinds of operations, in the order in which they run at one level.
DRAFTS, TREES, VERIFIES, TREE_VERIFIES, OVERLAPS = range(5)


class Op(NamedTuple):
    """A batched operation."""

    kind: int  # `DRAFTS`, `TREES`, `VERIFIES`, `TREE_VERIFIES` or `OVERLAPS`
    level: int  # of the member that runs, of an Overlap the largest one
    items: list[tuple[Session, Any]]  # `[B]` requests with their steps
    levels: tuple[int, ...] = ()  # `[P]` of an Overlap, the members of its parts

    @property
    def drafts(self) -> bool:
        """Whether its only part, or the last one, is a Draft or a DraftTree."""
        return self.items[0][1].drafts if self.kind == OVERLAPS else self.kind <= TREES

    def run(self, world: World) -> Results:
        """Let a world carry it out; the loop has checked that it can."""
        kind, level, items, levels = self
        if kind == DRAFTS:
            return world.draft(level, items)
        if kind == VERIFIES:
            return world.verify(level, items)
        if kind == OVERLAPS:
            assert isinstance(world, AheadWorld)
            return world.overlap(levels, items)
        assert isinstance(world, TreeWorld)
        return world.draft_trees(level, items) if kind == TREES else world.verify_trees(level, items)


class WaitingOps:
    """Operations that further steps may still join, and deferred steps. Mutated by all its methods.

    Attributes:
        ops: by what they have in common; the operation that runs next has the least key.
        held: steps that wait for memory, each with its level.
    """

    __slots__ = ("held", "ops")

    def __init__(self) -> None:
        # (0, level, kind), or of an Overlap (1, levels of its parts, whether the last one drafts).
        self.ops: dict[tuple[Any, ...], Op] = {}
        self.held: list[tuple[int, Session, OpStep]] = []

    def join(self, level: int, session: Session, step: OpStep) -> None:
        """Let a step wait for its operation."""
        key: tuple[Any, ...]
        levels: tuple[int, ...] = ()
        if isinstance(step, Overlap):
            kind, levels = OVERLAPS, levels_of(session, step)
            key = 1, levels, step.drafts
        else:
            if isinstance(step, Draft):
                kind = DRAFTS
            elif isinstance(step, DraftTree):
                kind = TREES
            else:
                kind = VERIFIES if session.tree is None else TREE_VERIFIES
            key = 0, level, kind
        op = self.ops.get(key)
        if op is None:
            op = self.ops[key] = Op(kind, level, [], levels)
        op.items.append((session, step))

    def drop(self, session: Session) -> None:
        """Remove the steps of a request."""
        for key, op in list(self.ops.items()):
            op.items[:] = [item for item in op.items if item[0] is not session]
            if not op.items:
                del self.ops[key]
        self.held = [step for step in self.held if step[1] is not session]

    def release(self) -> None:
        """Let held steps join their operations again."""
        for level, session, step in self.held:
            self.join(level, session, step)
        self.held.clear()

    def pop(self) -> Op | None:
        """The operation that runs next, held steps with the others if there is no other; None if nothing waits.

        The smallest member runs first, and drafts before it judges, so that the target, the expensive one, gets the
        largest batch. Overlaps come last, those with the smallest members first.
        """
        if not self.ops:
            self.release()
        return self.ops.pop(min(self.ops)) if self.ops else None
