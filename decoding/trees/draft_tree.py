"""The step that drafts a token tree."""

from dataclasses import dataclass

from ...arguments import ArgumentError
from .shapes import DynamicTree, FixedTree, TreeShape


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Let `model` write a tree of tokens behind the committed text, one forward for each layer.

    Legal with nothing pending. The tree's tokens are pending then, parents before their children, and the next step is
    a verification by `Exact` of a larger member, which keeps the path that it would write itself and adds its own
    token. The tree is cut where the budget ends, and nothing grows from an end-of-sequence token.

    Attributes:
        model: a pool member below the target, with weights and the target's tokenizer.
        shape: which of its tokens become nodes.

    Raises:
        ArgumentError: a shape that is none.
    """

    model: str
    shape: TreeShape

    def __post_init__(self) -> None:
        if not isinstance(self.shape, FixedTree | DynamicTree):
            raise ArgumentError(f"the shape of a tree must be a FixedTree or a DynamicTree, got {self.shape!r}")
