"""Token trees: their shapes, the step that drafts one, and how one grows.

A *rank* counts a member's tokens at a context from 0, its own next token, by logits if greedy, by logits over the
temperature plus noise if coupled. A node is a context and one token more; its *depth* counts tokens below the root, the
committed text. A tree grows layer by layer from the branches at each context. Both worlds and the recorder drive the
same growth. Scores are sums of log-probabilities on the grid of recordings (multiples of 1/1024 nat), which float64
adds exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from operator import index
from typing import NamedTuple

from ..base.errors import ArgumentError, check_within

MOST_NODES = 1024  # of one tree: one forward of the verifier holds them all
Path = tuple[int, ...]  # ranks from the root down


def whole(name: str, number: int) -> int:
    """The same number as Python's integer; raises ArgumentError for one that is not whole.

    Those of numpy have few bits: `np.uint8(3)` of a policy would make lengths of texts wrap at 256.
    """
    if not hasattr(number, "__index__"):  # integers of numpy have it, floats do not
        raise ArgumentError(f"{name} must be a whole number, got {number!r}")
    return index(number)


@dataclass(frozen=True, slots=True)
class FixedTree:
    """The same ranks in every tree, as in SpecInfer (arXiv:2305.09781) and Medusa (arXiv:2401.10774).

    Raises ArgumentError for no node or too many, a rank below 0, a path that is repeated or whose prefix is missing, or
    no path 0.
    """

    # ranks of every node from the root down, each once and with its prefixes, at most 1,024; stored in order of depth
    paths: tuple[Path, ...]
    _ranks: dict[Path, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ranked = [tuple(whole("a rank of a tree", rank) for rank in path) for path in self.paths]
        paths = tuple(sorted(ranked, key=lambda path: (len(path), path)))
        twice = next((path for path, after in pairwise(paths) if path == after), None)
        if twice is not None:
            raise ArgumentError(f"a tree must hold each path once, got {'.'.join(map(str, twice))} again")
        check_within("nodes of a tree", len(paths), f"[1, {MOST_NODES}]")
        ranks: dict[Path, tuple[int, ...]] = {(): ()} | dict.fromkeys(paths, ())
        for path in paths:
            if not path or min(path) < 0:
                raise ArgumentError(f"a path of a tree must be ranks >= 0, at least one, got {path}")
            if path[:-1] not in ranks:
                raise ArgumentError(f"every path of a tree must stand beside its prefixes, got {path} without")
            ranks[path[:-1]] = (*ranks[path[:-1]], path[-1])
        if (0,) not in ranks:
            raise ArgumentError(f"a tree must hold the drafter's own next token, path 0, got {paths[0]} first")
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "_ranks", ranks)

    @classmethod
    def of_widths(cls, widths: Sequence[int]) -> "FixedTree":
        """Every node of depth d has `widths[d]` children; raises ArgumentError as the class does."""
        if not widths or min(widths) < 1:
            raise ArgumentError(f"widths of a tree must be >= 1, at least one, got {tuple(widths)}")
        check_within("nodes of a tree", _count(widths), f"[1, {MOST_NODES}]")
        return cls(_paths_of(widths))

    def __repr__(self) -> str:
        return f"FixedTree({self.text!r})"

    @property
    def text(self) -> str:
        """As `tree_shape` reads it: `4x2x1` where every node of a depth has as many children, else paths."""
        widths: list[int] = []
        layer: list[Path] = [()]
        while layer := [(*path, rank) for path in layer for rank in self._ranks[path]]:
            widths.append(len(self._ranks[layer[0][:-1]]))
        if _count(widths) == len(self.paths) and self.paths == _paths_of(widths):
            return "x".join(map(str, widths))
        return "+".join(".".join(map(str, path)) for path in self.paths)

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return len(self.paths[-1])

    @property
    def most_nodes(self) -> int:
        """Nodes of a whole tree."""
        return len(self.paths)

    @property
    def most_fed(self) -> int:
        """Nodes that the drafter is fed: those with children."""
        return sum(bool(self._ranks[path]) for path in self.paths)

    def ranks(self, path: Path) -> tuple[int, ...]:
        """Ranks of a node's children; () for a leaf."""
        return self._ranks[path]

    def expanded(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of a layer's nodes, by their scores, get children: all."""
        return range(len(scores))

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of all nodes, by their scores, the tree ends with: all."""
        return range(len(scores))


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """Grows where the drafter is sure, as in EAGLE-2 (arXiv:2406.16858, 4.1 and 4.2).

    Of each layer the best nodes get children, `beams` each, by the product of the drafter's probabilities along their
    paths. Of all these the best are kept. A parent's product is no less than its child's, and the shallower of equal
    nodes comes first, so that what is kept is a tree. Raises ArgumentError for a number out of range.
    """

    beams: int  # nodes of a layer that get children, and children of each, 1 to 32
    depth: int  # layers, 1 to 1,024
    tokens: int  # nodes that are kept, 1 to 1,024

    def __post_init__(self) -> None:
        for name, most in (("beams", 32), ("depth", MOST_NODES), ("tokens", MOST_NODES)):
            number = whole(f"{name} of a tree", getattr(self, name))
            check_within(f"{name} of a tree", number, f"[1, {most}]")
            object.__setattr__(self, name, number)

    @property
    def text(self) -> str:
        """As `tree_shape` reads it."""
        return f"beam={self.beams},depth={self.depth},tokens={self.tokens}"

    @property
    def most_nodes(self) -> int:
        """Nodes of a whole tree."""
        return min(self.tokens, self.beams + (self.depth - 1) * self.beams**2)

    @property
    def most_fed(self) -> int:
        """Nodes that the drafter is fed, at most."""
        return self.beams * (self.depth - 1)

    def ranks(self, path: Path) -> tuple[int, ...]:
        """Ranks of a node's children; () for a leaf."""
        return tuple(range(self.beams)) if len(path) < self.depth else ()

    def expanded(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of a layer's nodes, by their scores, get children: the best, in their own order."""
        return _best(scores, self.beams)

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of all nodes, by their scores, the tree ends with: the best, in their own order."""
        return _best(scores, self.tokens)


TreeShape = FixedTree | DynamicTree


def _count(widths: Sequence[int]) -> int:
    """Nodes of a tree with `widths` children by depth, counted to a depth beyond `MOST_NODES` at most."""
    return sum(prod(widths[: depth + 1]) for depth in range(min(len(widths), MOST_NODES + 1)))


def _paths_of(widths: Sequence[int]) -> tuple[Path, ...]:
    paths: list[Path] = []
    layer: list[Path] = [()]
    for width in widths:
        layer = [(*path, rank) for path in layer for rank in range(width)]
        paths += layer
    return tuple(paths)


def _best(scores: Sequence[float], count: int) -> Sequence[int]:
    """Indices of the `count` largest scores, of equal ones the first, ascending."""
    if count >= len(scores):
        return range(len(scores))
    return sorted(sorted(range(len(scores)), key=lambda index: -scores[index])[:count])


def tree_shape(text: str) -> TreeShape:
    """A shape by its text: `4x2x1` (children by depth), `0+0.0+1` (paths of ranks), or `beam=4,depth=5,tokens=16`.

    Without `tokens` all that grows is kept. Raises ArgumentError for any other text, or an impossible shape.
    """
    try:
        if "=" in text:
            return _dynamic([part.split("=", 1) for part in text.split(",")])
        if "+" in text or "." in text:
            return FixedTree(tuple(tuple(map(int, path.split("."))) for path in text.split("+")))
        return FixedTree.of_widths([int(width) for width in text.split("x")])
    except ArgumentError:
        raise
    except (ValueError, TypeError):
        rule = "must be widths (4x2x1), paths of ranks (0+0.0+1) or beam=4,depth=5,tokens=16"
        raise ArgumentError(f"the shape of a tree {rule}, got {text!r}") from None


def _dynamic(given: Sequence[Sequence[str]]) -> DynamicTree:
    numbers: dict[str, int] = {}
    for name, value in given:
        if name in numbers:
            raise ArgumentError(f"the shape of a tree must have each number once, got {name}={value} again")
        numbers[name] = int(value)
    if not {"beam", "depth"} <= set(numbers) <= {"beam", "depth", "tokens"}:
        raise ValueError("other names")
    return DynamicTree(numbers["beam"], numbers["depth"], numbers.get("tokens", MOST_NODES))


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Let `model` write a tree of tokens after the committed text, one forward for each layer.

    Legal with nothing pending. The tree's tokens are pending then, parents before their children, and the next step is
    a verification by `Exact` of a larger member, which keeps the path that it would write itself and adds its own
    token. The tree is cut where the budget ends, and nothing grows from an end-of-sequence token. Raises ArgumentError
    for a `shape` of another type.
    """

    model: str  # a pool member below the target, with weights and the target's tokenizer
    shape: TreeShape  # which of its tokens become nodes

    def __post_init__(self) -> None:
        if not isinstance(self.shape, FixedTree | DynamicTree):
            raise ArgumentError(f"the shape of a tree must be a FixedTree or a DynamicTree, got {self.shape!r}")


ROOT = -1


class Branches(NamedTuple):
    """What a drafter would write at one context, best first; at least one, maybe fewer than requested."""

    tokens: Sequence[int]  # ids, all different
    log_probs: Sequence[float]  # of each, by the drafter, nats, on the grid
    places: Sequence[int] = ()  # of the context after each, where the world has it already; else empty


class Tree(NamedTuple):
    """A tree that has grown. Letter: N nodes, parents before their children."""

    parents: tuple[int, ...]  # `[N]` index of each node's parent, -1 at the root's children
    fed: tuple[int, ...]  # `[N]` which of the drafter's forwarded nodes each is, -1 for one that it was not fed
    # nodes that were fed in each of the drafter's forwards after the first, which reads the context
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
    """A tree while it grows, at most `room` >= 1 tokens along a path, and nothing after `eos`.

    Attributes:
        asks: contexts whose branches are needed next, as (node, number of branches), `ROOT` first; empty once it has
            grown.
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
        """Add the branches at all contexts of `asks`, in their order, and set the next `asks`."""
        first = len(self.tokens)
        for (node, _), branches in zip(self.asks, answers, strict=True):
            path, score = (self._paths[node], self._scores[node]) if node != ROOT else ((), 0.0)
            for rank in self._shape.ranks(path):
                if rank < len(branches.tokens):
                    self.tokens.append(branches.tokens[rank])
                    self.parents.append(node)
                    self.places.append(branches.places[rank] if branches.places else 0)
                    self._paths.append((*path, rank))
                    self._scores.append(score + branches.log_probs[rank])
        layer = [node for node in range(first, len(self.tokens)) if self._may_grow(node)]
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

    def _may_grow(self, node: int) -> bool:
        path = self._paths[node]
        return len(path) < self._room and self.tokens[node] not in self._eos and bool(self._shape.ranks(path))


def _path_to(parents: Sequence[int], node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]
