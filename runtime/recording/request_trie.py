"""Record the trie of one request: the trunk the target writes, then the closure around it, with every model's views.

The closure's kind says which contexts off the trunk. Monotone (`traces.contexts.trie`): every context that a chain of
Exact verifiers visits. Full: any model's next token at any step, the target's included; for chains with lossy
verifiers. Levels are grown one token at a time, `reach` of them; contexts that ended or used up the budget have no
children.

Letters: T trunk tokens, Q contexts evaluated together, M models (smallest first, target last), W models that may write
off the trunk (all but the target if monotone, else all), P pairs of models, V vocabulary, F ancestors off the trunk.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ...traces.contexts.trie import Ints, TreeRanks, Trie
from ..fused import TokenRows
from ..sampling import RequestNoise
from .branches import (
    Context,
    FeatureTree,
    FurtherViews,
    KnownNodes,
    Mask,
    Numbers,
    TreeBranches,
    TreeForward,
    Trunk,
    causal_mask,
    contexts_of,
    feature_views,
    further_views,
    tree_drafters,
    tree_mask,
    with_own_log_prob,
    written_by,
)
from .finished import TrieOptions, near_ties
from .views import Contexts, Floats32, Views, first_allowance, offspring, scores, view, writers_of


class RequestRecorder:
    """Evaluates the contexts of one request and gathers its trie; made for one call of `record`.

    `near_ties` counts choices so far that fp32 noise could flip; `trunk_near_ties` are tokens of the trunk whose choice
    rounding may turn over (`near_ties`).
    """

    def __init__(
        self,
        models: Sequence[PreTrainedModel],
        prompt: Sequence[int],
        options: TrieOptions,
        noise: RequestNoise | None,
        rows: Sequence[TokenRows | None] | None = None,
    ) -> None:
        rows = [None] * len(models) if rows is None else rows
        capacity = len(prompt) + options.max_new_tokens + 256
        self._reader: int | None
        self._reader, depths = options.features or (None, 1)
        # The reader's is a tree of its own, that of depths.
        self._forwards = [
            TreeForward(model, capacity=capacity, rows=rows[index])
            for index, model in enumerate(models)
            if index != self._reader
        ]
        self._features: FeatureTree | None = None
        if self._reader is not None:
            self._features = FeatureTree(
                models[self._reader], num_prompt=len(prompt), depths=depths, rows=rows[self._reader]
            )
        self._writers = writers_of(options.closure, len(models), reader=self._reader, depths=depths)
        self._num_models = len(models)
        # A context is one row for each depth, which all look at each other's slots.
        self._max_rows = max(8, options.max_rows // depths)
        self._prompt = tuple(prompt)
        self._options = options
        self._noise = noise
        self._columns: list[dict[str, NDArray[Any]]] = []
        self._further: list[dict[str, NDArray[Any]]] = []
        self._ranks: TreeRanks | None = None
        self._num_nodes = 0
        self.near_ties = self.trunk_near_ties = 0

    def record(self) -> Trie:
        """The trie of the request: trunk first, parents before their children."""
        trunk, target_logits, states = self._write_trunk()
        off_trunk, contexts = self._view_trunk(trunk, target_logits, states)
        self._grow(off_trunk)
        if contexts:
            self._grow_trees(contexts)
        return self._trie()

    def _write_trunk(self) -> tuple[Ints, Tensor, Tensor]:
        """The tokens `[T]` the target writes by itself, its logits `[T + 1, V]`, and its states as of `_ask_target`."""
        trunk = list[int]()
        length = len(self._prompt)
        said = [self._ask_target(self._prompt, range(length), causal_mask(0, length), num_logits=1)]
        eos = self._options.eos_token_ids
        while len(trunk) < self._options.max_new_tokens and not (trunk and trunk[-1] in eos):
            trunk.append(self._choose(said[-1][0], position=len(trunk)))
            position = length + len(trunk) - 1
            said.append(self._ask_target(trunk[-1:], [position], causal_mask(position, 1)))
        logits, states = zip(*said, strict=True)
        return np.array(trunk, dtype=np.int32), torch.cat(logits), torch.cat(states)

    def _ask_target(
        self, tokens: Numbers, positions: Numbers, mask: Mask, num_logits: int = 0
    ) -> tuple[Tensor, Tensor]:
        """As `TreeForward.append_with_states`; without states where no member reads them."""
        target = self._forwards[-1]
        if self._features is not None:
            return target.append_with_states(tokens, positions, mask, num_logits=num_logits)
        logits = target.append(tokens, positions, mask, num_logits=num_logits)
        return logits, logits[:0]

    def _choose(self, logits: Tensor, position: int) -> int:
        """The token one model writes, from its logits `[1, V]`; the same arithmetic as in `views`."""
        noise = None if self._noise is None else self._noise.rows([position])
        return int(scores(logits, self._options.sampling, noise).argmax())

    def _view_trunk(self, trunk: Ints, target_logits: Tensor, states: Tensor) -> tuple[Contexts, list[Context]]:
        """Keep the trunk's T + 1 contexts; returns the contexts one token off it, and what trees grow from, if any."""
        tokens = np.concatenate([self._prompt, trunk])
        mask, count = causal_mask(0, len(tokens)), len(trunk) + 1
        logits = [forward.append(tokens, range(len(tokens)), mask, num_logits=count) for forward in self._forwards[:-1]]
        depth = np.arange(count, dtype=np.int32)
        by_depth = [] if self._features is None else self._features.trunk(tokens.tolist(), states)
        seen, further = self._view([*logits, target_logits], depth, by_depth)
        contexts = self._contexts(logits, seen, depth)
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
        allowance = first_allowance(closure, num_models=self._num_models, num_contexts=count, writers=writers)
        written = written_by(seen, further, self._reader)[: len(allowance)]
        allowance[:, :-1][written[:, :-1] == trunk] = 0
        allowance[:, -1] = 0
        slots = (len(self._prompt) - 1 + depth).astype(np.int32)
        path = np.zeros((count, 0), dtype=np.int32)
        return self._children(
            (seen, further), depth, depth, allowance=allowance, last_trunk_slot=slots, path=path
        ), contexts

    def _contexts(self, logits: Sequence[Tensor], seen: Views, depth: Ints) -> list[Context]:
        """`[Q]` contexts for trees, from the logits `[Q, V]` of the models below the target; none without trees."""
        if not self._options.trees:
            return []
        noise = None if self._noise is None else self._noise.rows(depth.tolist())
        drafters = [logits[model] for _, model in tree_drafters(self._options.trees)]
        return contexts_of(seen, [scores(each, self._options.sampling, noise) for each in drafters])

    def _grow_trees(self, contexts: list[Context]) -> None:
        known = KnownNodes.of(self._columns)
        options, prompt = self._options, len(self._prompt)
        trunk = Trunk(contexts, prompt - 1, options.max_new_tokens, frozenset(options.eos_token_ids))
        branches = TreeBranches(trunk, known, self._forwards, self._evaluate_behind, self._keep)
        for tree in options.trees:
            branches.record(tree)
        self._ranks = branches.ranks()
        if options.sampling.mode == "greedy":  # the very numbers of the token itself
            own = np.concatenate([part["own_log_prob"] for part in self._columns], axis=-1)
            self._ranks = with_own_log_prob(self._ranks, own, [model for _, model in tree_drafters(options.trees)])

    def _evaluate_behind(self, token: Ints, depth: Ints, mask: NDArray[Any]) -> tuple[Views, list[Context]]:
        positions = len(self._prompt) - 1 + depth
        logits = [forward.append(token, positions, mask) for forward in self._forwards]
        seen, _ = self._view(logits, depth, [])
        return seen, self._contexts(logits, seen, depth)

    def _grow(self, off_trunk: Contexts) -> None:
        """Keep contexts one token off the trunk and all the closure has below them.

        Depth first by blocks: the cache holds the trunk and the ancestors of what is evaluated, not the whole tree.
        """
        waiting = self._blocks(off_trunk)
        while waiting:
            contexts, num_slots = waiting.pop()
            for forward in self._forwards:
                forward.cut(num_slots)
            if self._features is not None:
                self._features.cut(num_slots)
            waiting.extend(self._blocks(self._evaluate(contexts)))

    def _blocks(self, level: Contexts) -> list[tuple[Contexts, int]]:
        """Contexts in blocks of some `max_rows`, with the slots that hold their ancestors; none beyond the reach."""
        if not len(level) or level.path.shape[1] == self._options.closure.reach:
            return []
        blocks = np.array_split(np.arange(len(level)), math.ceil(len(level) / self._max_rows))
        num_slots = self._forwards[0].num_slots
        return [(level.take(block), num_slots) for block in blocks]

    def _evaluate(self, contexts: Contexts) -> Contexts:
        """Keep contexts with every model's view of them; returns their children, reach aside."""
        first_node, first_slot, count = self._num_nodes, self._forwards[0].num_slots, len(contexts)
        mask = tree_mask(contexts.last_trunk_slot, contexts.path, first_slot)
        positions = len(self._prompt) - 1 + contexts.depth
        logits = [forward.append(contexts.token, positions, mask) for forward in self._forwards[:-1]]
        last, states = self._ask_target(contexts.token, positions, mask)
        by_depth = [] if self._features is None else self._features.behind(contexts, states)
        seen, further = self._view([*logits, last], contexts.depth, by_depth)
        own = contexts.own_log_prob, contexts.further_log_prob
        self._keep(
            contexts.parent, contexts.token, contexts.depth,
            own_log_prob=own, on_trunk=False, seen=seen, further=further,
        )  # fmt: skip
        offsets = np.arange(count, dtype=np.int32)
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
        """`[Q]` whether nothing is written after these contexts."""
        return (depth >= self._options.max_new_tokens) | np.isin(token, self._options.eos_token_ids)

    def _view(
        self, logits: Sequence[Tensor], depth: Ints, by_depth: Sequence[Tensor]
    ) -> tuple[Views, FurtherViews | None]:
        """Every model's views, from the logits of all but the reader, and of the reader by depth."""
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

    def _trie(self) -> Trie:
        names = self._columns[0]
        columns: dict[str, Any] = {
            name: np.concatenate([part[name] for part in self._columns], axis=-1) for name in names
        }
        return Trie(**columns, ranks=self._ranks, features=feature_views(self._further))
