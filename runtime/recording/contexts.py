"""Contexts of one request's trie that wait for their evaluation, and who may write after them.

Letters: Q contexts, M models (smallest first, target last), W writers off the trunk (`Writers`), F ancestors off the
trunk, C children.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...traces.meta import Closure
from ...traces.tries.closure import Branches, Writers, grow
from ...traces.tries.trie import Ints

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Contexts equally far from the trunk, not yet evaluated.

    Attributes:
        parent: `[Q]` node.
        token: `[Q]` the token after the parent.
        depth: `[Q]` tokens after the prompt.
        own_log_prob: `[M, Q]` what each model gave to the token.
        further_log_prob: `[E, Q]` likewise, of the further depths of a drafter from the target's states.
        allowance: `[W, Q]` how many tokens each writer may write here (`offspring`).
        last_trunk_slot: `[Q]` slot of the last token shared with the trunk.
        path: `[Q, F]` slots of the ancestors after that.
    """

    parent: Ints
    token: Ints
    depth: Ints
    own_log_prob: Floats32
    further_log_prob: Floats32
    allowance: Ints
    last_trunk_slot: Ints
    path: Ints

    def __len__(self) -> int:
        return len(self.token)

    @property
    def parent_slot(self) -> Ints:
        """`[Q]` slot of the token before."""
        return self.path[:, -1] if self.path.shape[1] else self.last_trunk_slot

    def take(self, places: NDArray[np.intp]) -> "Contexts":
        """Some of them."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        # All but the path are counted by context in their last dimension.
        taken = {name: column[..., places] for name, column in columns.items() if name != "path"}
        return Contexts(**taken, path=self.path[places])


def writers_of(closure: Closure, num_models: int, *, reader: int | None = None, depths: int = 1) -> Writers:
    """Who may write off the trunk: all models below the target, in a full closure the target, too."""
    return Writers.of(num_models if closure.kind == "full" else num_models - 1, reader=reader, depths=depths)


def first_allowance(closure: Closure, *, num_models: int, num_contexts: int, writers: Writers | None = None) -> Ints:
    """`[W, Q]` how many tokens each writer may write after a context of the trunk, Q of them from the prompt on."""
    known = writers or writers_of(closure, num_models)
    allowance = np.full((len(known), num_contexts), closure.reach, dtype=np.int32)
    allowance[_read_in_any_case(known, np.arange(num_contexts, dtype=np.int32))] = 0
    return allowance


def offspring(
    closure: Closure,
    next_token: Ints,
    allowance: Ints,
    *,
    writers: Writers | None = None,
    depth: Ints | None = None,
    off_trunk: int = 0,
) -> Branches:
    """The next level: the children of Q contexts, one per context and token.

    Args:
        closure: the rule.
        next_token: `[W, Q]` what each writer writes; rows beyond those of the allowance are not looked at.
        allowance: `[W, Q]` how many tokens each writer may write there; 0 where its token stays on the trunk.
        writers: what the rows are; None: a model each.
        depth: `[Q]` tokens after the prompt; needed where a writer drafts from the target's states.
        off_trunk: tokens since the trunk, of the Q contexts.
    """
    branches = grow(next_token[: len(allowance)], allowance, closure.run, writers)
    if closure.kind == "full":
        branches = replace(branches, allowance=np.full_like(branches.allowance, closure.reach))
    if writers is None or depth is None:
        return branches
    allowed = branches.allowance.copy()
    allowed[_read_in_any_case(writers, depth[branches.parent] + np.int32(1))] = 0
    if closure.kind == "monotone":  # the target judges on the trunk alone, so that what is off it is not judged
        allowed[(writers.depth > 0) & (writers.depth < off_trunk + 2)] = 0
    return replace(branches, allowance=allowed)


def _read_in_any_case(writers: Writers, depth: Ints) -> NDArray[np.bool_]:
    """`[W, C]` whether a writer's depth reaches into the prompt, which the target has read."""
    return writers.depth[:, None] > depth
