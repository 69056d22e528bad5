"""What shapes the tries of a recording."""

from dataclasses import dataclass

from ...traces.meta import Closure, Sampling
from .tree_branches import TreeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieOptions:
    """What shapes a request's trie; the same for all requests of a recording.

    Attributes:
        sampling: how tokens are chosen.
        closure: which contexts off the trunk are kept.
        max_new_tokens: longest trunk, >= 1.
        eos_token_ids: each ends an answer; may be none.
        trees: that are recorded from every context of the trunk.
        features: index among the models, and depths, of the one that reads the target's states; None if none does.
        max_rows: most contexts of one forward off the trunk; the cache holds the trunk and at most reach times as many.
    """

    sampling: Sampling
    closure: Closure
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    trees: tuple[TreeSpec, ...] = ()
    features: tuple[int, int] | None = None
    max_rows: int = 128
