"""What carries out the operations of trees."""

from collections.abc import Sequence
from typing import NamedTuple

from ..executor.executor import Executor
from ..executor.rollback_processor import RollbackProcessor
from .tree_drafter import TreeDrafter
from .tree_verifier import TreeVerifier


class TreeProcessors(NamedTuple):
    """Who drafts trees, and who judges them."""

    drafter: TreeDrafter
    verifier: TreeVerifier

    @classmethod
    def over(cls, executor: Executor, rollback: RollbackProcessor, names: Sequence[str]) -> "TreeProcessors":
        """Both, over the same caches; `names` are those of the members, by level."""
        return cls(TreeDrafter(executor, rollback, names), TreeVerifier(executor, rollback, names))
