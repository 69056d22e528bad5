"""Record the contexts of token trees: from every context of the trunk the tree grows as it would in decoding.

The trees of a few neighbouring starts grow together, layer by layer, so that a context they share is evaluated once and
a layer is one forward of each model. A context that the closure holds already is evaluated again here, for its
branches, and not kept twice.

Letters: Q contexts evaluated together, M models (smallest first, target last), D models that draft trees, N nodes, V
vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...decoding.trees.growth import ROOT, Branches, Growth
from ...decoding.trees.shapes import TreeShape
from ...traces.tries.trie import Ints, TreeRanks
from ..executor.distances import stacked_on
from ..next_token_views import Views
from ..trees.ranked import ranked
from .tree_forward import TreeForward, tree_mask

LAYER_ROWS = 128  # contexts of one forward, about

Child = tuple[int, int]  # parent node and token


class Context(NamedTuple):
    """A context that was evaluated.

    Attributes:
        log_probs: `[M, V]` of every model.
        scores: `[D, V]` that the next tokens of those that draft trees are the argmax of.
    """

    log_probs: Tensor
    scores: Sequence[Tensor]


class TreeSpec(NamedTuple):
    """Trees to record: by which model, in which row of `TreeRanks`, of which shape."""

    model: int
    row: int
    shape: TreeShape


class Trunk(NamedTuple):
    """What trees start from.

    Attributes:
        contexts: of the trunk, node by node from the root.
        first_slot: of the last token of the prompt, where the root's context ends.
        budget: most tokens after the prompt.
        eos: end-of-sequence tokens.
    """

    contexts: Sequence[Context]
    first_slot: int
    budget: int
    eos: frozenset[int]


class Known(NamedTuple):
    """The nodes so far: `[N]` parents, tokens and depths, and each child by its parent and token."""

    parent: list[int]
    token: list[int]
    depth: list[int]
    children: dict[Child, int]

    @classmethod
    def of(cls, parts: Sequence[Mapping[str, NDArray[Any]]]) -> "Known":
        """Of the columns of a trie, part by part."""
        parent, token, depth = (
            np.concatenate([part[name] for part in parts]).tolist() for name in ("parent", "token", "depth")
        )
        return cls(parent, token, depth, {child: node for node, child in enumerate(zip(parent, token, strict=True))})


# Evaluates contexts by tokens `[Q]`, depths `[Q]` and mask; and keeps new ones, as `RequestRecorder` does.
Evaluate = Callable[[Ints, Ints, NDArray[Any]], tuple[Views, Sequence[Context]]]
Keep = Callable[..., None]


class TreeBranches:
    """Adds the contexts of trees to a trie; made for one request.

    Args:
        trunk: where trees start.
        known: nodes so far; mutated.
        forwards: of all models; their caches hold prompt and trunk, mutated.
        evaluate: contexts behind those in the caches.
        keep: notes new nodes.
    """

    def __init__(
        self, trunk: Trunk, known: Known, forwards: Sequence[TreeForward], evaluate: Evaluate, keep: Keep
    ) -> None:
        num_rows = len(trunk.contexts[0].scores)
        self._trunk, self._known, self._forwards = trunk, known, forwards
        self._evaluate, self._keep = evaluate, keep
        self._ranked: list[dict[int, int]] = [{} for _ in range(num_rows)]
        self._rank: list[dict[int, tuple[int, float]]] = [{} for _ in range(num_rows)]
        self._found: dict[int, Context] = {}  # off the trunk, of the trees that grow
        self._slots: dict[int, int] = {}

    def record(self, spec: TreeSpec) -> None:
        """Grow a tree from every context of the trunk but its end."""
        widest = 1 + max(spec.shape.ranks(()))
        step = max(1, LAYER_ROWS // max(widest, spec.shape.most_fed))
        end_slot = self._trunk.first_slot + len(self._trunk.contexts)
        for start in range(0, len(self._trunk.contexts) - 1, step):
            for forward in self._forwards:
                forward.cut(end_slot)
            self._found.clear()
            self._slots.clear()
            starts = range(start, min(start + step, len(self._trunk.contexts) - 1))
            self._grow(spec, starts)

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

    def _grow(self, spec: TreeSpec, starts: range) -> None:
        """Let the trees of these starts grow."""
        trunk = self._trunk
        growths = [Growth(spec.shape, room=trunk.budget - start, eos=trunk.eos) for start in starts]
        nodes: list[dict[int, int]] = [{ROOT: start} for start in starts]  # of the trie, by node of the tree
        while any(growth.asks for growth in growths):
            asked: dict[int, int] = {}  # node of the trie to branches wanted
            for growth, node_of in zip(growths, nodes, strict=True):
                for node, width in growth.asks:
                    asked[node_of[node]] = max(width, asked.get(node_of[node], 0))
            answers = self._answers(spec, asked)
            for growth, node_of in zip(growths, nodes, strict=True):
                first = len(growth.tokens)
                growth.take([_first(answers[node_of[node]], width) for node, width in growth.asks])
                for node in range(first, len(growth.tokens)):
                    node_of[node] = self._known.children[node_of[growth.parents[node]], growth.tokens[node]]

    def _answers(self, spec: TreeSpec, asked: dict[int, int]) -> dict[int, Branches]:
        """The branches at nodes of the trie, all of which are nodes of it afterwards."""
        contexts = [self._context(node).scores[spec.row] for node in asked]
        found = ranked(stacked_on(contexts[0].device, contexts), list(asked.values()))
        children: list[Child] = []
        for (node, width), branches in zip(asked.items(), found, strict=True):
            self._ranked[spec.row][node] = max(width, self._ranked[spec.row].get(node, 0))
            children += [(node, token) for token in branches.tokens]
        self._add(children)
        for (node, _), branches in zip(asked.items(), found, strict=True):
            for place, (token, log_prob) in enumerate(zip(branches.tokens, branches.log_probs, strict=True)):
                self._rank[spec.row][self._known.children[node, token]] = place, log_prob
        return dict(zip(asked, found, strict=True))

    def _context(self, node: int) -> Context:
        return self._trunk.contexts[node] if node < len(self._trunk.contexts) else self._found[node]

    def _add(self, children: Sequence[Child]) -> None:
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
        first_slot = self._forwards[0].num_slots
        token = np.array([last for _, last in wanted], dtype=np.int32)
        depth = np.array([known.depth[node] for node in nodes], dtype=np.int32)
        seen, contexts = self._evaluate(token, depth, self._mask([parent for parent, _ in wanted], first_slot))
        self._found.update(zip(nodes, contexts, strict=True))
        self._slots.update({node: first_slot + place for place, node in enumerate(nodes)})
        if new:
            self._keep_new([wanted[place] for place in new], depth[new], _taken(seen, new))

    def _keep_new(self, children: Sequence[Child], depth: Ints, seen: Views) -> None:
        """Keep contexts that are new, with what each model gave to their tokens."""
        parent, token = np.array(children, dtype=np.int32).T
        own = [self._context(node).log_probs[:, last].cpu().numpy() for node, last in children]
        self._keep(parent, token, depth, own_log_prob=(np.stack(own, axis=1), None), on_trunk=False, seen=seen)

    def _mask(self, parents: Sequence[int], num_slots: int) -> NDArray[np.bool_]:
        """What contexts after these nodes look at: the trunk as far as they share it, their ancestors, themselves."""
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
        # Paths of other lengths are filled up with a slot that is seen anyway.
        filled = [[*path, *[slot] * (longest - len(path))] for path, slot in zip(paths, last, strict=True)]
        path_slots = np.array(filled, dtype=np.int32).reshape(len(parents), longest)
        return tree_mask(np.array(last, dtype=np.int32), path_slots, num_slots)


def _first(branches: Branches, width: int) -> Branches:
    return Branches(branches.tokens[:width], branches.log_probs[:width])


def _taken(seen: Views, places: Sequence[int]) -> Views:
    """The views of some contexts, without distributions."""
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


def with_own_log_prob(ranks: TreeRanks, own_log_prob: NDArray[np.float64], models: Sequence[int]) -> TreeRanks:
    """Branches with the log-probabilities `[M, N]` that nodes have anyway, of the models that draft trees."""
    return replace(ranks, branch_log_prob=np.where(ranks.rank >= 0, own_log_prob[list(models)], 0.0))
