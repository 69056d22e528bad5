"""What a drafter that reads the target's states says of a context, by how much of it the target has judged.

The *depth* of a draft is the number of tokens of its context that the target has not judged: 1 where all but the last
one are. What the drafter says at depth 1 stands among the views of all models (`Trie`); here are the further depths.

Letters: N nodes, D depths recorded (`FeatureDepths.depths`), E = D - 1 further ones, O other models (smallest first).
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureViews:
    """Views at depths 2 to D; row 0 is depth 2. All probabilities are on the grids of `stored_resolution`.

    Where a node lies fewer tokens after the prompt than the depth says, which the target has read in any case, there is
    no such view: the token is -1, and all else 0.

    Attributes:
        next_token: `[E, N]` the token the drafter writes here.
        next_log_prob: `[E, N]` its log-probability, nats, <= 0.
        top_log_prob: `[E, N]` log of the largest probability.
        gap: `[E, N]` largest probability less the second largest, 0 to 1.
        entropy: `[E, N]` nats, >= 0.
        own_log_prob: `[E, N]` log-probability that the drafter gave at the parent, at this depth of the parent, to this
            node's token; 0 where the parent has no such view.
        tvd: `[E O, N]` total variation distance to each other model here, all of one depth side by side, 0 to 1.
    """

    next_token: Ints
    next_log_prob: Floats
    top_log_prob: Floats
    gap: Floats
    entropy: Floats
    own_log_prob: Floats
    tvd: Floats

    def children(self, parent: Ints, token: Ints) -> Ints:
        """`[E, N]` the recorded child that each next token leads to, -1 where the recording ends or nothing is said."""
        return children_of(self.next_token, parent, token)


def children_of(next_token: Ints, parent: Ints, token: Ints) -> Ints:
    """`[W, N]` the child that each of W next tokens `[W, N]` leads to in a trie, -1 where there is none."""
    found = np.full(next_token.shape, -1, dtype=np.int32)
    nodes = np.arange(1, len(parent), dtype=np.int32)
    above, leading = parent[1:], token[1:]
    # From the child's side: children of a node differ in their tokens, so at most one follows each writer.
    for child, written in zip(found, next_token, strict=True):
        follows = written[above] == leading
        child[above[follows]] = nodes[follows]
    return found


def feature_fields() -> tuple[str, ...]:
    """Names of the arrays of `FeatureViews`."""
    return tuple(field.name for field in fields(FeatureViews))


def arrays_of(views: FeatureViews) -> dict[str, Any]:
    """Its arrays by name."""
    return {name: getattr(views, name) for name in feature_fields()}


def cut(views: FeatureViews, nodes: slice) -> FeatureViews:
    """Those of some nodes."""
    return FeatureViews(**{name: array[:, nodes] for name, array in arrays_of(views).items()})


def joined(parts: list[FeatureViews]) -> FeatureViews:
    """Those of requests whose nodes lie one after another; at least one."""
    names = feature_fields()
    return FeatureViews(**{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names})
