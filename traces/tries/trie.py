"""The token trie of one request: contexts, and every model's view of each.

Letters: N nodes, M recorded models (smallest first), P = M(M-1)/2 pairs of models (`TrieMeta.pairs`).
Node 0 is the prompt; a node is its parent's context and one token more; parents come before their children.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features.views import FeatureViews, children_of, cut

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRanks:
    """Branches of the models that draft token trees. Letter: D such models (`TrieMeta.tree_drafters`).

    Attributes:
        rank: `[D, N]` place of this node's token among the model's branches at the parent, 0 the best; -1 where none is
            recorded.
        ranked: `[D, N]` how many of the model's branches here were asked for: all of that rank are children, but for
            tokens that sampling leaves out.
        branch_log_prob: `[D, N]` what the model gives to this node's token as a branch, nats, <= 0: the log of the
            softmax of the scores that tokens are chosen by (its log-probability if greedy); 0 where rank is -1.
    """

    rank: Ints
    ranked: Ints
    branch_log_prob: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie:
    """Contexts reached from one prompt. All probabilities are on the grids of `stored_resolution`.

    Attributes:
        parent: `[N]` node index, -1 at the root.
        token: `[N]` the token that leads from the parent here, -1 at the root.
        depth: `[N]` tokens after the prompt, 0 at the root.
        on_trunk: `[N]` whether the target itself would write this context.
        next_token: `[M, N]` the token each model writes here (argmax, or the coupled sample).
        next_log_prob: `[M, N]` its log-probability, nats, <= 0.
        top_log_prob: `[M, N]` log of the largest probability (equals `next_log_prob` under greedy sampling).
        gap: `[M, N]` largest probability less the second largest, 0 to 1.
        entropy: `[M, N]` nats, >= 0.
        own_log_prob: `[M, N]` log-probability each model gave, at the parent, to this node's token (0 at the root).
        tvd: `[P, N]` total variation distance of each pair of models here, 0 to 1.
        ranks: branches of token trees; None where none are recorded.
        features: views of the drafter that reads the target's states, at depths beyond 1; None where there is none. The
            row of that model holds depth 1: what it says where the target has judged all but the last token.
    """

    parent: Ints
    token: Ints
    depth: Ints
    on_trunk: NDArray[np.bool_]
    next_token: Ints
    next_log_prob: Floats
    top_log_prob: Floats
    gap: Floats
    entropy: Floats
    own_log_prob: Floats
    tvd: Floats
    ranks: TreeRanks | None = None
    features: FeatureViews | None = None

    @property
    def num_nodes(self) -> int:
        """Number of contexts."""
        return len(self.parent)

    @property
    def trunk(self) -> Ints:
        """Nodes of the trunk from the root down: entry i is the context after i emitted tokens."""
        nodes = np.flatnonzero(self.on_trunk).astype(np.int32)
        return nodes[np.argsort(self.depth[nodes], kind="stable")]

    @property
    def agreement(self) -> NDArray[np.bool_]:
        """`[M, T]` whether each model writes the target's token at the T trunk contexts that wrote one, in order."""
        written = self.next_token[:, self.trunk[:-1]]
        agrees: NDArray[np.bool_] = written == written[-1]
        return agrees

    def children(self) -> Ints:
        """`[M, N]` the recorded child that each model's next token leads to, -1 where the recording ends."""
        return children_of(self.next_token, self.parent, self.token)


def split(joined: Trie, num_nodes: Sequence[int]) -> tuple[Trie, ...]:
    """The tries of requests whose nodes lie one after another, `num_nodes` each; views, nothing is copied."""
    ends = accumulate(num_nodes, initial=0)
    return tuple(_part(joined, slice(start, end)) for start, end in pairwise(ends))


def _part(trie: Trie, nodes: slice) -> Trie:
    columns = {name: column[..., nodes] for name, column in columns_of(trie).items()}
    ranks = trie.ranks
    features = None if trie.features is None else cut(trie.features, nodes)
    if ranks is None:
        return Trie(**columns, features=features)
    parts = {field.name: getattr(ranks, field.name)[:, nodes] for field in fields(TreeRanks)}
    return Trie(**columns, ranks=TreeRanks(**parts), features=features)


def columns_of(trie: Trie) -> dict[str, Any]:
    """Its arrays by name, but for those of `ranks` and `features`."""
    return {name: getattr(trie, name) for name in plain_columns()}


def plain_columns() -> tuple[str, ...]:
    """Names of the arrays of a trie, but for those of `ranks` and `features`."""
    return tuple(field.name for field in fields(Trie) if field.name not in ("ranks", "features"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieRequest:
    """One recorded request.

    That of a stored recording reads its trie anew whenever it is asked for (`LazyRequest`): take it once.

    Attributes:
        request_id: unique in the recording.
        tag: task or domain.
        prompt: token ids, at least one.
        max_new_tokens: the budget the trunk was recorded with, >= 1.
        trie: its contexts.
    """

    request_id: str
    tag: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    trie: Trie

    @property
    def num_nodes(self) -> int:
        """Number of contexts."""
        return self.trie.num_nodes
