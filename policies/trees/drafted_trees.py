"""What policies of trees share: a tree is drafted, then judged until the target has committed."""

from abc import ABC

from ...decoding.contract import Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ...decoding.trees.draft_tree import DraftTree
from ...decoding.trees.shapes import TreeShape
from ..about import About
from ..parts.default_members import middle_verifier, sure_drafter


class DraftedTrees(ABC):
    """Draft a tree and judge it in turns; where a token at most has room, the target decodes alone.

    Args:
        pool: the members.
        policy: its name, for errors.
        draft: the drafter; None is the smallest model.
        through: a member that judges the tree before the target does; None is the target at once.
        shape: of the trees.

    Attributes:
        trees: the step that drafts, for who records what it needs.
        most_pending: tokens that may be pending, at most.
        most_off_trunk: tokens that may follow one another off the target's text, at most.
    """

    about: About

    def __init__(self, pool: Pool, policy: str, draft: str | None, through: str | None, shape: TreeShape) -> None:
        drafter = sure_drafter(pool, draft, policy)
        self.trees = (DraftTree(drafter, shape),)
        self._middle = None if through is None else Verify(middle_verifier(pool, through, drafter, policy))
        self._target = Verify(pool.target)
        self.most_pending = shape.most_nodes
        self.most_off_trunk = shape.depth + (self._middle is not None)

    def decide(self, seen: Observation) -> Step:
        """A tree where nothing is pending, then its judgements."""
        if not seen.num_pending:
            return self.trees[0] if seen.room > 1 else self._target
        return self._target if self._middle is None or seen.parents is None else self._middle

    def learn(self, outcome: Outcome) -> None:  # noqa: B027 - a policy that learns nothing is whole
        """Nothing to learn."""
