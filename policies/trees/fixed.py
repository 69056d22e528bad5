"""`tree`: every draft is a token tree of one shape, judged in one forward (SpecInfer, arXiv:2305.09781)."""

from ...decoding.pool import Pool
from ...decoding.trees.shapes import FixedTree, tree_shape
from ..about import BRANCHES, About
from ..parts.default_members import A_SURE_DRAFTER
from .drafted_trees import DraftedTrees


class Tree(DraftedTrees):
    """Trees by ranks: widths by depth as in SpecInfer, or paths as a search over shapes finds them (Sequoia, Medusa).

    Args:
        pool: the members.
        draft: the drafter; default the smallest model with probabilities.
        shape: `4x2x1`, children by depth, or paths of ranks `0+0.0+1`.
        through: a member between the two that judges first; default none.

    Raises:
        ValueError: a shape that is none, or members that cannot do it.
    """

    about = About(
        paper="SpecInfer, arXiv:2305.09781; Sequoia, arXiv:2402.12374",
        lossless=True,
        members=A_SURE_DRAFTER,
        observes=BRANCHES,
    )

    def __init__(
        self, pool: Pool, *, draft: str | None = None, shape: str = "4x2x1x1", through: str | None = None
    ) -> None:
        fixed = tree_shape(shape)
        if not isinstance(fixed, FixedTree):
            raise ValueError(f"shape must be widths (4x2x1) or paths of ranks (0+0.0+1), got {shape!r}")
        super().__init__(pool, "tree", draft, through, fixed)
