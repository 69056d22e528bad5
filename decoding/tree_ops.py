"""What a world that knows token trees is asked for, and the operations that ask.

Which steps begin a token tree, and which a pending one allows.

A world need not know them: then the step is refused. Letters: B requests of one operation.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from .results import DraftResults, VerifyResults
from .rules import Exact
from .session import Session
from .steps import Verify
from .trees import DraftTree


def check_tree(session: Session, step: DraftTree) -> int:
    """The level that drafts a tree; raises ValueError with the rule that the step breaks."""
    pool = session.pool
    level = pool.level(step.model)
    if level == pool.target_level:
        raise ValueError("the target does not draft; verify with nothing pending is plain decoding")
    if not pool.members[level].verifies:
        raise ValueError(f"{pool.names[level]} drafts no tree: it has no distribution over the target's tokens")
    if session.tokens:
        raise ValueError(f"a tree is drafted with nothing pending, and {len(session.tokens)} tokens are")
    return level


def check_on_tree(session: Session, step: object) -> None:
    """Refuse what a pending tree does not allow; raises ValueError with the rule that the step breaks."""
    rule = getattr(step, "rule", None)
    if rule is None:
        raise ValueError("a tree is pending, and the only step on it is a Verify")
    if not isinstance(rule, Exact):
        raise ValueError(f"a tree is verified by Exact(), got {rule!r}")


TreeItem = tuple[Session, DraftTree]


@runtime_checkable
class TreeWorld(Protocol):
    """Drafts trees and judges them; what `decoding.world.World` says of its operations holds here as well."""

    def check_tree(self, level: int) -> None:
        """Raises ValueError where the member at `level` drafts no trees here, with the reason."""
        ...

    def draft_trees(self, level: int, items: Sequence[TreeItem]) -> DraftResults:
        """Let the member at `level` draft trees for `[B]` requests; rows have a `tree`."""
        ...

    def verify_trees(self, level: int, items: Sequence[tuple[Session, Verify]]) -> VerifyResults:
        """Let the member at `level` judge the trees that are pending in `[B]` requests; rows have a `path`."""
        ...


class TreeDraftOp(NamedTuple):
    """A batched draft of trees; fields as of `DraftOp`."""

    level: int
    items: list[TreeItem]

    def run(self, world: object) -> DraftResults:
        """Let a world carry it out."""
        return tree_world(world, self.level).draft_trees(self.level, self.items)


class TreeVerifyOp(NamedTuple):
    """A batched verification of trees; fields as of `VerifyOp`."""

    level: int
    items: list[tuple[Session, Verify]]

    def run(self, world: object) -> VerifyResults:
        """Let a world carry it out."""
        assert isinstance(world, TreeWorld)  # it drafted them
        return world.verify_trees(self.level, self.items)


def tree_world(world: object, level: int) -> TreeWorld:
    """A world in which the member at `level` drafts trees; raises ValueError for another."""
    if not isinstance(world, TreeWorld):
        raise ValueError(f"token trees are not known here ({type(world).__name__})")
    world.check_tree(level)
    return world
