"""How a tree grows: whoever can answer for contexts is asked, layer by layer, and hands over the drafter's branches.

Both worlds drive the same growth, and the recorder does, so a tree is the same wherever the branches are. Scores are
sums of log-probabilities on the grid of recordings (multiples of 1/1024 nat), which float64 adds exactly.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .shapes import Path, TreeShape

ROOT = -1


class Branches(NamedTuple):
    """What a drafter would write at one context, best first; may be fewer than were asked for, at least one.

    Attributes:
        tokens: ids, all different.
        log_probs: what the drafter gives to each, nats, on the grid.
        places: of the context after each, where a world knows it already; else empty.
    """

    tokens: Sequence[int]
    log_probs: Sequence[float]
    places: Sequence[int] = ()


class Tree(NamedTuple):
    """A tree that has grown. Letter: N nodes, parents before their children.

    Attributes:
        parents: `[N]` index of each node's parent, -1 at the root's children.
        fed: `[N]` which of the drafter's forwarded nodes each is, -1 for one that it was not fed.
        widths: nodes that were fed in each of the drafter's forwards after the first, which reads the context.
    """

    parents: tuple[int, ...]
    fed: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def num_fed(self) -> int:
        """Nodes that the drafter was fed."""
        return sum(self.widths)

    def beyond(self, path: Sequence[int]) -> int | None:
        """The first node after the last one of a path, or below the root if it is empty; None if there is none."""
        last = path[-1] if path else ROOT
        return self.parents.index(last) if last in self.parents else None

    def held(self, path: Sequence[int]) -> int:
        """How many leading nodes of a path the drafter was fed."""
        for length, node in enumerate(path):
            if self.fed[node] < 0:
                return length
        return len(path)

    def child(self, path: Sequence[int], token: int, tokens: Sequence[int]) -> int | None:
        """The node after a path that has a token, of the N `tokens`; None if there is none."""
        parent = path[-1] if path else ROOT
        for node in range(parent + 1, len(tokens)):
            if self.parents[node] == parent and tokens[node] == token:
                return node
        return None

    def path_to(self, node: int) -> list[int]:
        """A node's ancestors from the top, itself included; none for the root."""
        return _path_to(self.parents, node)


class Growth:
    """A tree while it grows.

    Args:
        shape: of the tree.
        room: most tokens along a path, >= 1.
        eos: nothing grows from these.

    Attributes:
        asks: contexts to answer for next, as (node, number of branches), `ROOT` first; empty once it has grown.
        tokens, parents, places: of all nodes so far, in the order in which they came.
    """

    def __init__(self, shape: TreeShape, *, room: int, eos: frozenset[int]) -> None:
        self._shape, self._room, self._eos = shape, room, eos
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.places: list[int] = []
        self._paths: list[Path] = []
        self._scores: list[float] = []
        self._fed: dict[int, int] = {}
        self._widths: list[int] = []
        self.asks = [(ROOT, 1 + max(shape.ranks(())))]

    def take(self, answers: Sequence[Branches]) -> None:
        """The branches at all contexts of `asks`, in their order; what is asked next follows."""
        first = len(self.tokens)
        for (node, _), branches in zip(self.asks, answers, strict=True):
            path, score = (self._paths[node], self._scores[node]) if node != ROOT else ((), 0.0)
            for rank in self._shape.ranks(path):
                if rank < len(branches.tokens):
                    self._add(node, (*path, rank), score, branches, rank)
        layer = [node for node in range(first, len(self.tokens)) if self._goes_on(node)]
        chosen = self._shape.expanded([self._scores[node] for node in layer])
        self.asks = [(layer[index], 1 + max(self._shape.ranks(self._paths[layer[index]]))) for index in chosen]
        for node, _ in self.asks:
            self._fed[node] = len(self._fed)
        if self.asks:
            self._widths.append(len(self.asks))

    def kept(self) -> list[int]:
        """The nodes that the tree ends with, ascending."""
        return list(self._shape.kept(self._scores))

    def tree(self, kept: Sequence[int]) -> Tree:
        """The tree of these nodes, as `kept` gives them."""
        number = {node: index for index, node in enumerate(kept)}
        parents = tuple(number.get(self.parents[node], ROOT) for node in kept)
        return Tree(parents, tuple(self._fed.get(node, -1) for node in kept), tuple(self._widths))

    def path_to(self, node: int) -> list[int]:
        """As `Tree.path_to`, among all nodes so far."""
        return _path_to(self.parents, node)

    def _goes_on(self, node: int) -> bool:
        path = self._paths[node]
        return len(path) < self._room and self.tokens[node] not in self._eos and bool(self._shape.ranks(path))

    def _add(self, parent: int, path: Path, score: float, branches: Branches, rank: int) -> None:
        self.tokens.append(branches.tokens[rank])
        self.parents.append(parent)
        self.places.append(branches.places[rank] if branches.places else 0)
        self._paths.append(path)
        self._scores.append(score + branches.log_probs[rank])


def _path_to(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]
