"""`tree-dynamic`: trees that grow where the drafter is sure (EAGLE-2, arXiv:2406.16858)."""

from ...decoding.pool import Pool
from ...decoding.trees.shapes import DynamicTree
from ..about import BRANCHES, About
from ..parts.default_members import A_SURE_DRAFTER
from .drafted_trees import DraftedTrees


class TreeDynamic(DraftedTrees):
    """Of each layer the most probable nodes grow on, and of all nodes the most probable are judged.

    EAGLE-2 sets ten beams, six layers and 60 tokens; a drafter here runs a whole model for each layer, so that the
    defaults are smaller.

    Args:
        pool: the members.
        draft: the drafter; default the smallest model with probabilities.
        beams: nodes of a layer that grow on, and children of each, 1 to 32.
        depth: layers, >= 1.
        tokens: nodes that are judged, 1 to 1,024.
        through: a member between the two that judges first; default none.

    Raises:
        ValueError: an option out of range, or members that cannot do it.
    """

    about = About(paper="EAGLE-2, arXiv:2406.16858", lossless=True, members=A_SURE_DRAFTER, observes=BRANCHES)

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        beams: int = 4,
        depth: int = 5,
        tokens: int = 16,
        through: str | None = None,
    ) -> None:
        super().__init__(pool, "tree-dynamic", draft, through, DynamicTree(beams, depth, tokens))
