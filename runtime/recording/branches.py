"""The contexts that a recording holds beside the closure of its models: those of depths, and of token trees.

`FeatureTree` is a drafter that reads the target's states, at each depth that is recorded. A context at depth d reads,
for its last d tokens except the first, the drafter's own states: those of the contexts before it at the depths before.
The target has read the tokens before them, the same at all depths. So there is a slot for each context and depth, and a
context attends to those of its ancestors, one depth less at each, down to 1.

`TreeBranches` grows token trees from every context of the trunk, as decoding would. The trees of a few neighbouring
starts grow together, layer by layer, so that a context they share is evaluated once and a layer is one forward of each
model. A context of the closure is evaluated again, for its branches, and not kept twice.

Letters: Q contexts evaluated together, S slots, D depths, or models that draft trees, R contexts at depths, E further
depths, W hidden size or writers, V vocabulary, C children, M models (smallest first, target last), O = M - 1 others, N
nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.trees import ROOT, Branches, Growth, TreeShape
from ...traces.contexts.columns import rounded
from ...traces.contexts.trie import NO_TOKEN, FeatureViews, Ints, TreeRanks, names_of
from ...traces.meta import Sampling
from ..distances import stacked_on
from ..trees import ranked
from .together import Ask, Asking, Mask, Numbers, causal_mask, tree_mask
from .views import Contexts, Floats32, Views, view


class FeatureTree:
    """The known states of one request's contexts; changed by `trunk`, `behind` and `cut`.

    `reader` is the drafter's index among the models, `depths` is D. `base` is as of an `Ask`.
    """

    def __init__(self, reader: int, *, num_prompt: int, depths: int, base: int | None = None) -> None:
        self._reader, self._base = [reader], base
        self._num_prompt, self._depths = num_prompt, depths
        self._slots: NDArray[np.int64] = np.zeros((0, depths), dtype=np.int64)  # [S, D], -1 for none
        self._ends: list[int] = []  # by ordinary slot, slots in use after it was appended
        self._held = 0  # slots in use
        self._states = torch.zeros(0)  # [slots, 1 + D, W] by ordinary slot: the target's, then its own at each depth

    def fork(self, base: int) -> "FeatureTree":
        """A copy that continues independently, in a row that begins as a copy of row `base`."""
        other = FeatureTree(self._reader[0], num_prompt=self._num_prompt, depths=self._depths, base=base)
        other._slots, other._ends, other._held = self._slots, list(self._ends), self._held
        other._states = self._states.clone()
        return other

    def trunk(self, tokens: Sequence[int], states: Tensor) -> Asking[list[Tensor]]:
        """Read prompt and trunk, of `tokens` `[S]` and the target's `states` `[S, W]`.

        Returns:
            By depth, `[Q, V]` logits after the prompt and each token of the trunk; NaN where the target has read
            everything.
        """
        count, first = len(tokens), self._num_prompt - 1
        self._slots = np.full((count, self._depths), -1, dtype=np.int64)
        self._states = states.new_zeros((2 * count, 1 + self._depths, states.shape[1]))
        self._states[:count, 0] = states
        at = np.arange(count)
        depths = np.ones(count, dtype=int)
        logits = yield from self._run(at, tokens, at, self._before(at - 1, depths), causal_mask(0, count), depths)
        found = [logits[first:]]
        for depth in range(2, self._depths + 1):
            at = np.arange(first + depth, count)
            found.append(torch.full_like(found[0], torch.nan))
            if len(at):
                depths = np.full(len(at), depth)
                looks, new = self._looks([np.arange(place) for place in at], depths), tokens[first + depth :]
                found[-1][depth:] = yield from self._run(at, new, at, self._before(at - 1, depths), looks, depths)
        self._ends = [self._held] * count
        return found

    def behind(self, contexts: Contexts, states: Tensor) -> Asking[list[Tensor]]:
        """Read Q contexts off the trunk, whose ancestors were read; returns as `trunk`, `[Q, V]` of each depth.

        `states` are `[Q, W]` of the target.
        """
        first, count = len(self._slots), len(contexts)
        self._slots = np.concatenate([self._slots, np.full((count, self._depths), -1, dtype=np.int64)])
        self._make_room(first + count)
        self._states[first : first + count, 0] = states
        known = np.arange(1, self._depths + 1)[None, :] <= np.maximum(contexts.depth, 1)[:, None]
        row, depth = np.nonzero(known)
        depth = depth + 1
        trunk = contexts.last_trunk_slot
        ancestors = [np.concatenate([np.arange(trunk[at] + 1), contexts.path[at]]) for at in range(count)]
        logits = yield from self._run(
            first + row,
            contexts.token[row],
            self._num_prompt - 1 + contexts.depth[row],
            self._before(contexts.parent_slot[row], depth),
            self._looks([ancestors[at] for at in row], depth),
            depth,
        )
        self._ends += [self._held] * count
        whole = logits.new_full((self._depths, count, logits.shape[1]), torch.nan)
        whole[torch.from_numpy(depth - 1), torch.from_numpy(row)] = logits
        return list(whole.unbind())

    def cut(self, num_slots: int) -> None:
        """Forget all ordinary slots from `num_slots` on."""
        if num_slots < len(self._slots):
            self._held = self._ends[num_slots - 1]
            self._slots = self._slots[:num_slots]
            del self._ends[num_slots:]

    def _make_room(self, num_slots: int) -> None:
        if num_slots > len(self._states):
            grown = self._states.new_zeros((2 * num_slots, *self._states.shape[1:]))
            grown[: len(self._states)] = self._states
            self._states = grown

    def _before(self, parents: NDArray[np.integer], depths: NDArray[np.integer]) -> Tensor:
        """`[R, W]` the state before each: the target's at depth 1, else its own of the context before."""
        places = torch.from_numpy(np.asarray(parents, dtype=np.int64) * (1 + self._depths) + depths - 1)
        before = self._states.flatten(0, 1)[places.clamp(min=0).to(self._states.device)]
        before[torch.from_numpy(parents < 0).to(before.device)] = 0  # there is none before the first token
        return before

    def _looks(self, ancestors: Sequence[NDArray[np.integer]], depths: NDArray[np.integer]) -> Mask:
        """`[R, slots]` slots each attends to: its ancestors `[n]`, in order, at depths that fall to 1, and itself."""
        held, count = self._held, len(depths)
        mask = np.zeros((count, held + count), dtype=np.bool_)
        for row, (before, depth) in enumerate(zip(ancestors, depths.tolist(), strict=True)):
            at = np.maximum(1, depth - np.arange(len(before), 0, -1))
            mask[row, self._slots[before, at - 1]] = True
            mask[row, held + row] = True
        return mask

    def _run(
        self,
        at: NDArray[np.integer],
        tokens: Numbers,
        positions: NDArray[np.integer],
        before: Tensor,
        mask: Mask,
        depths: NDArray[np.integer],
    ) -> Asking[Tensor]:
        """`[R, V]` logits of new slots, of contexts in the ordinary slots `at`; notes slots and own states."""
        (said,) = yield Ask(self._reader, tokens, positions, mask, before=before, base=self._base)
        device = self._states.device
        self._slots[at, depths - 1] = np.arange(self._held, self._held + len(at))  # of new contexts, in a new array
        self._held += len(at)
        places = torch.from_numpy(np.asarray(at, dtype=np.int64)).to(device), torch.from_numpy(depths).to(device)
        self._states[places] = said.states
        return said.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherViews:
    """Views of Q contexts, unrounded; where a depth reaches into text that the target has read, tokens are -1."""

    known: NDArray[np.bool_]  # [E, Q] whether there is a view
    seen: Views  # each depth's views, as of a model; distances [E O, Q] are to the other models, depth by depth

    @property
    def next_token(self) -> Ints:
        """`[E, Q]`."""
        return np.where(self.known, self.seen.next_token, NO_TOKEN).astype(np.int32)

    def log_prob_of(self, context: Ints, token: Ints) -> Floats32:
        """`[E, C]` log-probability of a token after a context; 0 where there is no view."""
        given: Floats32 = np.where(self.known[:, context], self.seen.log_prob_of(context, token), 0.0)
        return given.astype(np.float32)

    def num_near_ties(self, among: NDArray[np.bool_]) -> int:
        """Choices among some contexts whose two best scores nearly tie."""
        return int((self.known & self.seen.near_tie & among).sum())

    def columns(self, own_log_prob: Floats32) -> dict[str, NDArray[Any]]:
        """The columns of `FeatureViews`, rounded; `own_log_prob` is `[E, Q]`."""
        tvd = np.where(self.known.repeat(len(self.seen.tvd) // len(self.known), axis=0), self.seen.tvd, 0)
        apart = {"next_token": self.next_token, "own_log_prob": own_log_prob, "tvd": tvd}
        said = {name: getattr(self.seen, name) for name in names_of(FeatureViews) if name not in apart}
        return rounded(apart | {name: np.where(self.known, rows, 0) for name, rows in said.items()})


def further_views(
    logits: Sequence[Tensor],
    seen: Views,
    reader: int,
    depth: Ints,
    *,
    sampling: Sampling,
    noise: NDArray[np.float32] | None,
) -> FurtherViews | None:
    """Views at E further depths of the drafter at the index `reader`, from its logits `[Q, V]` at each.

    Logits are ignored where the target has read everything, by `depth`: tokens `[Q]` after the prompt. The views of all
    models, `seen`, hold the drafter at depth 1.
    """
    if not logits:
        return None
    known = np.arange(2, len(logits) + 2)[:, None] <= depth  # `[E, Q]`: a context exists at depths from 2 on
    rows = []
    for row, there in zip(logits, known, strict=True):
        at = torch.from_numpy(there).to(row.device)
        rows.append(torch.where(at[:, None], row, torch.zeros_like(row)).to(seen.log_probs.device))
    others = [index for index in range(len(seen.next_token)) if index != reader]
    said = view(rows, sampling=sampling, noise=noise, others=seen.log_probs[others])
    return FurtherViews(known=known, seen=said)


def written_by(seen: Views, further: FurtherViews | None, reader: int | None) -> Ints:
    """`[W, Q]` what each writer writes, all models, and the drafter's further depths after its first one."""
    if further is None or reader is None:
        return seen.next_token
    at = reader + 1
    return np.concatenate([seen.next_token[:at], further.next_token, seen.next_token[at:]])


def feature_views(columns: Sequence[dict[str, NDArray[Any]]]) -> FeatureViews | None:
    """Those of a whole trie, from `FurtherViews.columns` of its parts; None without further depths."""
    if not columns or not len(columns[0]["next_token"]):
        return None
    return FeatureViews(**{name: np.concatenate([part[name] for part in columns], axis=-1) for name in columns[0]})


LAYER_ROWS = 128  # contexts of one forward, about

Child = tuple[int, int]  # parent node and token


class Context(NamedTuple):
    """A context that was evaluated."""

    log_probs: Tensor  # [M, V] of every model
    scores: Sequence[Tensor]  # [D, V] that the next tokens of those that draft trees are the argmax of


class TreeSpec(NamedTuple):
    """Trees to record: model, row of `TreeRanks`, and shape."""

    model: int
    row: int
    shape: TreeShape


class Trunk(NamedTuple):
    """The trunk, where trees start."""

    contexts: Sequence[Context]  # of the trunk, node by node from the root
    first_slot: int  # of the last token of the prompt, where the root's context ends
    budget: int  # most tokens after the prompt
    eos: frozenset[int]  # end-of-sequence tokens


class KnownNodes(NamedTuple):
    """The nodes so far: `[N]` parents, tokens and depths, and each child by its parent and token."""

    parent: list[int]
    token: list[int]
    depth: list[int]
    children: dict[Child, int]

    @classmethod
    def of(cls, parts: Sequence[Mapping[str, NDArray[Any]]]) -> "KnownNodes":
        """Of the columns of a trie, part by part."""
        parent, token, depth = (
            np.concatenate([part[name] for part in parts]).tolist() for name in ("parent", "token", "depth")
        )
        return cls(parent, token, depth, {child: node for node, child in enumerate(zip(parent, token, strict=True))})


# Evaluates contexts by tokens `[Q]`, depths `[Q]` and mask; and keeps new ones, as in `RequestRecorder`.
Evaluate = Callable[[Ints, Ints, Mask], Asking[tuple[Views, Sequence[Context]]]]
Keep = Callable[..., None]


class TreeBranches:
    """Adds the contexts of trees to a trie; made for one request.

    `known` are the nodes so far; mutated. The caches hold prompt and trunk, and `evaluate` is for contexts after those
    in them; `keep` notes new nodes.
    """

    def __init__(self, trunk: Trunk, known: KnownNodes, evaluate: Evaluate, keep: Keep) -> None:
        num_rows = len(trunk.contexts[0].scores)
        self._trunk, self._known = trunk, known
        self._evaluate, self._keep = evaluate, keep
        self._ranked: list[dict[int, int]] = [{} for _ in range(num_rows)]
        self._rank: list[dict[int, tuple[int, float]]] = [{} for _ in range(num_rows)]
        self._found: dict[int, Context] = {}  # off the trunk, of the trees that grow
        self._slots: dict[int, int] = {}
        self._num_slots = 0  # in use

    def record(self, spec: TreeSpec) -> Asking[None]:
        """Grow a tree from every context of the trunk except its end."""
        widest = 1 + max(spec.shape.ranks(()))
        step = max(1, LAYER_ROWS // max(widest, spec.shape.most_fed))
        end_slot = self._trunk.first_slot + len(self._trunk.contexts)
        for start in range(0, len(self._trunk.contexts) - 1, step):
            self._num_slots = end_slot
            self._found.clear()
            self._slots.clear()
            starts = range(start, min(start + step, len(self._trunk.contexts) - 1))
            yield from self._grow(spec, starts)

    def ranks(self) -> TreeRanks:
        """Of all nodes."""
        count = len(self._known.parent)
        rank = np.full((len(self._rank), count), -1, dtype=np.int32)
        asked = np.zeros_like(rank)
        branch_log_prob = np.zeros(rank.shape)
        for row, (by_node, by_parent) in enumerate(zip(self._rank, self._ranked, strict=True)):
            for node, (place, log_prob) in by_node.items():
                rank[row, node], branch_log_prob[row, node] = place, log_prob
            for node, width in by_parent.items():
                asked[row, node] = width
        return TreeRanks(rank=rank, ranked=asked, branch_log_prob=branch_log_prob)

    def _grow(self, spec: TreeSpec, starts: range) -> Asking[None]:
        trunk = self._trunk
        growths = [Growth(spec.shape, room=trunk.budget - start, eos=trunk.eos) for start in starts]
        nodes: list[dict[int, int]] = [{ROOT: start} for start in starts]  # of the trie, by node of the tree
        while any(growth.asks for growth in growths):
            asked: dict[int, int] = {}  # node of the trie: number of branches
            for growth, node_of in zip(growths, nodes, strict=True):
                for node, width in growth.asks:
                    asked[node_of[node]] = max(width, asked.get(node_of[node], 0))
            answers = yield from self._answers(spec, asked)
            for growth, node_of in zip(growths, nodes, strict=True):
                first = len(growth.tokens)
                growth.take([_first(answers[node_of[node]], width) for node, width in growth.asks])
                for node in range(first, len(growth.tokens)):
                    node_of[node] = self._known.children[node_of[growth.parents[node]], growth.tokens[node]]

    def _answers(self, spec: TreeSpec, asked: dict[int, int]) -> Asking[dict[int, Branches]]:
        """The branches at nodes of the trie; adds all of them to it."""
        contexts = [self._context(node).scores[spec.row] for node in asked]
        found = ranked(stacked_on(contexts[0].device, contexts), list(asked.values()))
        children: list[Child] = []
        for (node, width), branches in zip(asked.items(), found, strict=True):
            self._ranked[spec.row][node] = max(width, self._ranked[spec.row].get(node, 0))
            children += [(node, token) for token in branches.tokens]
        yield from self._add(children)
        for (node, _), branches in zip(asked.items(), found, strict=True):
            for place, (token, log_prob) in enumerate(zip(branches.tokens, branches.log_probs, strict=True)):
                self._rank[spec.row][self._known.children[node, token]] = place, log_prob
        return dict(zip(asked, found, strict=True))

    def _context(self, node: int) -> Context:
        return self._trunk.contexts[node] if node < len(self._trunk.contexts) else self._found[node]

    def _add(self, children: Sequence[Child]) -> Asking[None]:
        """Evaluate contexts that no tree of this group has seen, and keep those that are new."""
        known, num_trunk = self._known, len(self._trunk.contexts)
        wanted = [
            child
            for child in children
            if (node := known.children.get(child)) is None or (node >= num_trunk and node not in self._found)
        ]
        if not wanted:
            return
        new = [place for place, child in enumerate(wanted) if child not in known.children]
        for parent, last in [wanted[place] for place in new]:
            known.children[parent, last] = len(known.parent)
            known.parent.append(parent)
            known.token.append(last)
            known.depth.append(known.depth[parent] + 1)
        nodes = [known.children[child] for child in wanted]
        first_slot = self._num_slots
        self._num_slots += len(wanted)
        token = np.array([last for _, last in wanted], dtype=np.int32)
        depth = np.array([known.depth[node] for node in nodes], dtype=np.int32)
        mask = self._mask([parent for parent, _ in wanted], first_slot)
        seen, contexts = yield from self._evaluate(token, depth, mask)
        self._found.update(zip(nodes, contexts, strict=True))
        self._slots.update({node: first_slot + place for place, node in enumerate(nodes)})
        if new:
            added = [wanted[place] for place in new]
            own = np.stack([self._context(node).log_probs[:, last].cpu().numpy() for node, last in added], axis=1)
            parent, last_token = np.array(added, dtype=np.int32).T
            some = _taken(seen, new)
            self._keep(parent, last_token, depth[new], own_log_prob=(own, None), on_trunk=False, seen=some)

    def _mask(self, parents: Sequence[int], num_slots: int) -> NDArray[np.bool_]:
        """What contexts after these nodes attend to: the trunk as far as they share it, their ancestors, themselves."""
        num_trunk, known = len(self._trunk.contexts), self._known
        paths, last = [], []
        for node in parents:
            path = []
            while node >= num_trunk:
                path.append(self._slots[node])
                node = known.parent[node]
            paths.append(path)
            last.append(self._trunk.first_slot + node)
        longest = max(map(len, paths))
        # Shorter paths are padded with a slot that is attended to anyway.
        filled = [[*path, *[slot] * (longest - len(path))] for path, slot in zip(paths, last, strict=True)]
        path_slots = np.array(filled, dtype=np.int32).reshape(len(parents), longest)
        return tree_mask(np.array(last, dtype=np.int32), path_slots, num_slots)


def _first(branches: Branches, width: int) -> Branches:
    return Branches(branches.tokens[:width], branches.log_probs[:width])


def _taken(seen: Views, places: Sequence[int]) -> Views:
    columns = {field.name: getattr(seen, field.name) for field in fields(Views) if field.name != "log_probs"}
    return replace(seen, **{name: column[..., places] for name, column in columns.items()})


def contexts_of(seen: Views, ranking: Sequence[Tensor]) -> list[Context]:
    """`[Q]` contexts, from the views of all models and the scores `[Q, V]` of each of the D that draft trees."""
    rows = zip(*(scores.unbind() for scores in ranking), strict=True)
    return [
        Context(log_probs, by_drafter) for log_probs, by_drafter in zip(seen.log_probs.unbind(1), rows, strict=True)
    ]


def tree_drafters(trees: Sequence[TreeSpec]) -> list[tuple[int, int]]:
    """Rows of `TreeRanks` with their models, ascending."""
    return sorted({tree.row: tree.model for tree in trees}.items())
