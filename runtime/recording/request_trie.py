"""Record the trie of one request: the trunk the target writes, then the closure around it, with every model's views.

The closure's kind determines the contexts off the trunk. Monotone (`traces.contexts.trie`): every context that a chain
of Exact verifiers visits. Full: any model's next token at any step, the target's included; for chains with lossy
verifiers. Levels are grown one token at a time, `reach` of them; contexts that ended or used up the budget have no
children.

Letters: T trunk tokens, Q contexts evaluated together, M models (smallest first, target last), W models that may write
off the trunk (all except the target if monotone, else all), P pairs of models, V vocabulary, F ancestors off the trunk.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...traces.contexts.trie import Ints, TreeRanks, Trie
from ...traces.meta import Closure, Sampling
from ..coupled_noise import RequestNoise
from .branches import (
    Context,
    FeatureTree,
    FurtherViews,
    KnownNodes,
    TreeBranches,
    TreeSpec,
    Trunk,
    contexts_of,
    feature_views,
    further_views,
    tree_drafters,
    written_by,
)
from .near_ties import near_ties
from .together import Ask, Asking, ContextResults, Mask, Numbers, causal_mask, tree_mask
from .views import Contexts, Floats32, Views, first_allowance, offspring, scores, view, writers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieOptions:
    """Options that shape a request's trie; the same for all requests of a recording."""

    sampling: Sampling  # how tokens are chosen
    closure: Closure  # which contexts off the trunk are kept
    max_new_tokens: int  # longest trunk, >= 1
    eos_token_ids: tuple[int, ...]  # each ends an answer; may be none
    trees: tuple[TreeSpec, ...] = ()  # that are recorded from every context of the trunk
    # Index among the models, and depths, of the one that reads the target's states; None if none does.
    features: tuple[int, int] | None = None

    @property
    def room(self) -> int:
        """Slots that a row needs beside those of the prompt."""
        return self.max_new_tokens + min(self.closure.reach, self.max_new_tokens) * _MAX_ROWS


# Nodes off the trunk are stored depth first in blocks of `_BLOCK`, fewer with depths of a drafter. Earlier versions
# evaluated them in this order; a trie does not depend on the order of evaluation.
_BLOCK, _LEAST_BLOCK = 128, 8
# Contexts one token off the trunk whose trees grow in a row of their own, and the most of them evaluated at once.
_PART, _MAX_ROWS = 16, 32


class TrunkSaid(NamedTuple):
    """A trunk and the target's logits along it."""

    tokens: Ints  # [T]
    logits: Tensor  # [T + 1, V] after the prompt and each token
    states: Tensor  # [S, W] of the prompt and the trunk, S tokens; none where no member reads them


class RequestRecorder:
    """Requests evaluations of one request's contexts and gathers its trie; made for one call of `record`.

    `near_ties` counts choices so far that fp32 noise could flip; `trunk_near_ties` are tokens of the trunk whose choice
    rounding may flip (`near_ties`). `num_written` is the trunk's tokens so far, `fraction` about the share of the work
    off it that is done. Call `write_trunk`, `view_trunk`, `grow` for each part that this returns, in any order, and
    `finish`.
    """

    def __init__(
        self,
        num_models: int,
        prompt: Sequence[int],
        options: TrieOptions,
        noise: RequestNoise | None = None,
    ) -> None:
        self._reader: int | None
        self._reader, depths = options.features or (None, 1)
        # The reader has its own tree, with depths.
        self._others = [index for index in range(num_models - 1) if index != self._reader]
        self._features: FeatureTree | None = None
        if self._reader is not None:
            self._features = FeatureTree(self._reader, num_prompt=len(prompt), depths=depths)
        self._writers = writers_of(options.closure, num_models, reader=self._reader, depths=depths)
        self._num_models = num_models
        self._num_parts = 1
        self._block = max(_LEAST_BLOCK, _BLOCK // depths)
        self.prompt = tuple(prompt)
        self._options = options
        self._noise = noise
        self._columns: list[dict[str, NDArray[Any]]] = []
        self._further: list[dict[str, NDArray[Any]]] = []
        self._ranks: TreeRanks | None = None
        self._num_nodes = self._num_trunk = 0
        self._contexts_of_trees: list[Context] = []
        self.num_written, self.fraction = 0, 0.0
        self.near_ties = self.trunk_near_ties = 0

    def write_trunk(self) -> Asking[TrunkSaid]:
        """Let the target write the trunk alone."""
        trunk = list[int]()
        length = len(self.prompt)
        said = yield from self._ask_target(self.prompt, range(length), causal_mask(0, length), num_logits=1)
        found = [said]
        eos = self._options.eos_token_ids
        while len(trunk) < self._options.max_new_tokens and not (trunk and trunk[-1] in eos):
            self.num_written = len(trunk) + 1
            trunk.append(self._choose(found[-1].logits[0], position=len(trunk)))
            position = length + len(trunk) - 1
            said = yield from self._ask_target(trunk[-1:], [position], causal_mask(position, 1))
            found.append(said)
        logits, states = zip(*found, strict=True)
        self._num_trunk = len(trunk) + 1
        return TrunkSaid(np.array(trunk, dtype=np.int32), torch.cat(logits), torch.cat(states))

    def _ask_target(
        self, tokens: Numbers, positions: Numbers, mask: Mask, num_logits: int = 0
    ) -> Asking[ContextResults]:
        (said,) = yield Ask([self._num_models - 1], tokens, positions, mask, num_logits)
        return said

    def _choose(self, logits: Tensor, position: int) -> int:
        """The token one model writes, from its logits `[1, V]`; the same arithmetic as in `views`."""
        noise = None if self._noise is None else self._noise.rows([position])
        return int(scores(logits, self._options.sampling, noise).argmax())

    def view_trunk(self, said: TrunkSaid) -> Asking[list[Contexts]]:
        """Keep the trunk's T + 1 contexts; returns the contexts one token off it, in parts of neighbours."""
        trunk, target_logits, states = said
        tokens = np.concatenate([self.prompt, trunk])
        mask, count = causal_mask(0, len(tokens)), len(trunk) + 1
        logits = list[Tensor]()
        if self._others:
            others = yield Ask(self._others, tokens, range(len(tokens)), mask, num_logits=count)
            logits = [each.logits for each in others]
        depth = np.arange(count, dtype=np.int32)
        by_depth = list[Tensor]()
        if self._features is not None:
            by_depth = yield from self._features.trunk(tokens.tolist(), states)
        seen, further = self._view([*logits, target_logits], depth, by_depth)
        self._contexts_of_trees = self._contexts(logits, seen, depth)
        noise = None if self._noise is None else self._noise.rows(depth[:-1].tolist())
        ties = near_ties(target_logits[:-1], self._options.sampling, noise)
        self.trunk_near_ties = int(ties.sum())
        own = np.zeros((self._num_models, count), dtype=np.float32)
        own[:, 1:] = seen.log_prob_of(depth[:-1], trunk)
        below = np.zeros((max(0, len(by_depth) - 1), count), dtype=np.float32)
        if further is not None:
            below[:, 1:] = further.log_prob_of(depth[:-1], trunk)
        token = np.concatenate([[-1], trunk]).astype(np.int32)
        self._keep(depth - 1, token, depth, own_log_prob=(own, below), on_trunk=True, seen=seen, further=further)
        closure, writers = self._options.closure, self._writers
        allowance = first_allowance(closure, count, writers)
        written = written_by(seen, further, self._reader)[: len(allowance)]
        allowance[:, :-1][written[:, :-1] == trunk] = 0
        allowance[:, -1] = 0
        slots = (len(self.prompt) - 1 + depth).astype(np.int32)
        path = np.zeros((count, 0), dtype=np.int32)
        off = self._children((seen, further), depth, depth, allowance=allowance, last_trunk_slot=slots, path=path)
        parts = np.array_split(np.arange(len(off)), math.ceil(len(off) / _PART)) if len(off) else []
        self._num_parts = len(parts)
        return [off.take(part) for part in parts]

    def _contexts(self, logits: Sequence[Tensor], seen: Views, depth: Ints) -> list[Context]:
        """`[Q]` contexts for trees, from the logits `[Q, V]` of the models below the target; none without trees."""
        if not self._options.trees:
            return []
        noise = None if self._noise is None else self._noise.rows(depth.tolist())
        drafters = [logits[model] for _, model in tree_drafters(self._options.trees)]
        return contexts_of(seen, [scores(each, self._options.sampling, noise) for each in drafters])

    def _grow_trees(self, contexts: list[Context]) -> Asking[None]:
        known = KnownNodes.of(self._columns)
        options, prompt = self._options, len(self.prompt)
        trunk = Trunk(contexts, prompt - 1, options.max_new_tokens, frozenset(options.eos_token_ids))
        branches = TreeBranches(trunk, known, self._evaluate_behind, self._keep)
        for tree in options.trees:
            yield from branches.record(tree)
        self._ranks = branches.ranks()
        if options.sampling.mode == "greedy":  # the same numbers as for the token itself
            own = np.concatenate([part["own_log_prob"] for part in self._columns], axis=-1)
            of_drafters = own[[model for _, model in tree_drafters(options.trees)]]
            ranks = self._ranks
            self._ranks = replace(ranks, branch_log_prob=np.where(ranks.rank >= 0, of_drafters, 0.0))

    def _evaluate_behind(self, token: Ints, depth: Ints, mask: Mask) -> Asking[tuple[Views, list[Context]]]:
        said = yield Ask(range(self._num_models), token, len(self.prompt) - 1 + depth, mask)
        logits = [each.logits for each in said]
        seen, _ = self._view(logits, depth, [])
        return seen, self._contexts(logits, seen, depth)

    def grow(self, part: Contexts, row: int) -> Asking[None]:
        """Keep contexts one token off the trunk and the closure below them; `row` holds prompt and trunk.

        Depth first by blocks: the cache holds the trunk and the ancestors of the evaluated contexts, not the whole
        tree.
        """
        features = None if self._features is None else self._features.fork(row)
        num_slots = len(self.prompt) + self._num_trunk - 1
        waiting, reach = self._blocks(part, num_slots, share=1 / self._num_parts), self._options.closure.reach
        while waiting:
            contexts, num_slots, share = waiting.pop()
            if features is not None:
                features.cut(num_slots)
            levels = reach - contexts.path.shape[1]  # that one and those below it
            below = yield from self._evaluate(contexts, features, num_slots, row)
            blocks = self._blocks(below, num_slots + len(contexts), share=share * (1 - 1 / levels))
            self.fraction += share if not blocks else share / levels
            waiting.extend(blocks)

    def finish(self) -> Asking[Trie]:
        """The trie: trunk first, parents before their children."""
        self._put_in_order()
        if self._contexts_of_trees:
            yield from self._grow_trees(self._contexts_of_trees)
        columns: dict[str, Any] = _joined(self._columns)
        return Trie(**columns, ranks=self._ranks, features=feature_views(self._further))

    def _blocks(self, level: Contexts, num_slots: int, *, share: float) -> list[tuple[Contexts, int, float]]:
        """Contexts in blocks of some `_MAX_ROWS`; none beyond the reach.

        Each with the slots that hold its ancestors, and its part of `share`, the work of all of them.
        """
        if not len(level) or level.path.shape[1] == self._options.closure.reach:
            return []
        blocks = np.array_split(np.arange(len(level)), math.ceil(len(level) / _MAX_ROWS))
        return [(level.take(block), num_slots, share / len(blocks)) for block in blocks]

    def _evaluate(
        self, contexts: Contexts, features: FeatureTree | None, first_slot: int, row: int
    ) -> Asking[Contexts]:
        """Keep contexts with every model's view of them; returns their children, whatever the reach."""
        mask = tree_mask(contexts.last_trunk_slot, contexts.path, first_slot)
        positions = len(self.prompt) - 1 + contexts.depth
        said = yield Ask([*self._others, self._num_models - 1], contexts.token, positions, mask, base=row)
        by_depth = list[Tensor]()
        if features is not None:
            by_depth = yield from features.behind(contexts, said[-1].states)
        seen, further = self._view([each.logits for each in said], contexts.depth, by_depth)
        own, first_node = (contexts.own_log_prob, contexts.further_log_prob), self._num_nodes
        self._keep(
            contexts.parent, contexts.token, contexts.depth,
            own_log_prob=own, on_trunk=False, seen=seen, further=further,
        )  # fmt: skip
        offsets = np.arange(len(contexts), dtype=np.int32)
        return self._children(
            (seen, further),
            first_node + offsets,
            contexts.depth,
            allowance=np.where(self._ended(contexts.token, contexts.depth), 0, contexts.allowance),
            last_trunk_slot=contexts.last_trunk_slot,
            path=np.column_stack([contexts.path, first_slot + offsets]),
        )

    def _children(
        self,
        views: tuple[Views, FurtherViews | None],
        node: Ints,
        depth: Ints,
        *,
        allowance: Ints,
        last_trunk_slot: Ints,
        path: Ints,
    ) -> Contexts:
        seen, further = views
        branches = offspring(
            self._options.closure,
            written_by(seen, further, self._reader),
            allowance,
            writers=self._writers,
            depth=depth,
            off_trunk=path.shape[1],
        )
        parent, token = branches.parent, branches.token
        none = np.zeros((0, len(parent)), dtype=np.float32)
        return Contexts(
            parent=node[parent],
            token=token,
            depth=depth[parent] + np.int32(1),
            own_log_prob=seen.log_prob_of(parent, token),
            further_log_prob=none if further is None else further.log_prob_of(parent, token),
            allowance=branches.allowance,
            last_trunk_slot=last_trunk_slot[parent],
            path=path[parent],
        )

    def _ended(self, token: Ints, depth: Ints) -> NDArray[np.bool_]:
        """`[Q]` whether these contexts end the answer."""
        return (depth >= self._options.max_new_tokens) | np.isin(token, self._options.eos_token_ids)

    def _view(
        self, logits: Sequence[Tensor], depth: Ints, by_depth: Sequence[Tensor]
    ) -> tuple[Views, FurtherViews | None]:
        """Every model's views, from the logits of all except the reader, and of the reader by depth."""
        noise = None if self._noise is None else self._noise.rows(depth.tolist())
        device, sampling, reader = logits[-1].device, self._options.sampling, self._reader
        whole = [model.to(device) for model in logits]
        if reader is None:
            return view(whole, sampling=sampling, noise=noise), None
        seen = view([*whole[:reader], by_depth[0].to(device), *whole[reader:]], sampling=sampling, noise=noise)
        return seen, further_views(by_depth[1:], seen, reader, depth, sampling=sampling, noise=noise)

    def _keep(
        self,
        parent: Ints,
        token: Ints,
        depth: Ints,
        *,
        own_log_prob: tuple[Floats32, Floats32 | None],
        on_trunk: bool,
        seen: Views,
        further: FurtherViews | None = None,
    ) -> None:
        """Keep contexts; `own_log_prob` is of every model, and of the reader's further depths."""
        going, (own, below) = ~self._ended(token, depth), own_log_prob
        self.near_ties += int(seen.near_tie[:, going].sum())
        if further is not None and below is not None:
            self.near_ties += further.num_near_ties(going)
            self._further.append(further.columns(below))
        self._num_nodes += len(token)
        self._columns.append(
            {
                "parent": parent,
                "token": token,
                "depth": depth,
                "on_trunk": np.full(len(token), on_trunk),
                **seen.facts(own),
            }
        )

    def _put_in_order(self) -> None:
        columns = _joined(self._columns)
        order = block_order(columns["parent"], columns["token"], num_trunk=self._num_trunk, block=self._block)
        place = np.argsort(order).astype(np.int32)
        columns = {name: column[..., order] for name, column in columns.items()}
        columns["parent"] = np.where(columns["parent"] < 0, -1, place[columns["parent"]]).astype(np.int32)
        self._columns = [columns]
        if self._further:
            self._further = [{name: column[..., order] for name, column in _joined(self._further).items()}]


def _joined(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Columns of parts of a trie, joined along the last dimension, that of nodes."""
    return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}


def block_order(parent: Ints, token: Ints, *, num_trunk: int, block: int) -> NDArray[np.int64]:
    """`[N]` nodes in the order of a trie, from parents and tokens `[N]` in another order.

    The trunk's nodes are the first ones, in their order. Levels off it follow depth first, some `block` nodes at a
    time, the last ones first; a level's nodes are sorted by parent and token.
    """
    by_parent = num_trunk + np.lexsort((token[num_trunk:], parent[num_trunk:]))
    ends = np.searchsorted(parent[by_parent], np.arange(len(parent) + 1))
    order = [np.arange(num_trunk)]

    def blocks(nodes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        below = np.concatenate([by_parent[ends[node] : ends[node + 1]] for node in nodes])
        return np.array_split(below, math.ceil(len(below) / block)) if len(below) else []

    waiting = blocks(order[0])
    while waiting:
        order.append(waiting.pop())
        waiting.extend(blocks(order[-1]))
    return np.concatenate(order)
