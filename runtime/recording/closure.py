"""Which contexts a recording holds off the trunk, by the kind of its closure.

Monotone (`traces.tries.closure`): every context that a chain of Exact verifiers visits. Full: any model's next token at
any step, the target's included, up to `reach`; for chains with lossy verifiers.

Levels are grown one token at a time; whoever grows them stops after `reach` levels, and gives no children to contexts
that ended or used up the budget. Letters: Q contexts of one level, W models that may write off the trunk (all but the
target if monotone, else all; smallest first), M all models.
"""

from dataclasses import replace

import numpy as np

from ...traces.meta import Closure
from ...traces.tries.closure import Branches, grow, trunk_allowance
from ...traces.tries.trie import Ints


def first_allowance(closure: Closure, *, num_models: int, num_contexts: int) -> Ints:
    """`[W, Q]` how many tokens each model may write after a context of the trunk."""
    writers = num_models if closure.kind == "full" else num_models - 1
    return trunk_allowance(writers, num_contexts, closure.reach)


def offspring(closure: Closure, next_token: Ints, allowance: Ints) -> Branches:
    """The next level: the children of Q contexts, one per context and token.

    Args:
        closure: the rule.
        next_token: `[M, Q]` what each model writes.
        allowance: `[W, Q]` how many tokens each model may write there; 0 where its token stays on the trunk.
    """
    branches = grow(next_token[: len(allowance)], allowance, closure.run)
    if closure.kind == "monotone":
        return branches
    return replace(branches, allowance=np.full_like(branches.allowance, closure.reach))
