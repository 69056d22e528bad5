"""The shapes of token trees: which contexts a drafter is asked about, and which of its tokens become nodes.

A *rank* counts a member's tokens at a context from 0, its own next token, by what it chooses them by: logits if greedy,
logits over the temperature and noise if coupled. A node of a tree is a context and one token more, its *depth* the
tokens below the root, which is the committed text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from ...arguments import ArgumentError, check_within

MOST_NODES = 1024  # of one tree: one forward of the verifier holds them all
Path = tuple[int, ...]  # ranks from the root down


@dataclass(frozen=True, slots=True)
class FixedTree:
    """The same ranks whatever the drafter says, as in SpecInfer (arXiv:2305.09781) and Medusa (arXiv:2401.10774).

    Attributes:
        paths: ranks of every node from the root down, each once and beside its prefixes, at most 1,024; kept in their
            order by depth.

    Raises:
        ArgumentError: no node or too many, a rank below 0, a path twice or whose prefix is missing, or no path 0.
    """

    paths: tuple[Path, ...]
    _ranks: dict[Path, tuple[int, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        paths = tuple(sorted(map(tuple, self.paths), key=lambda path: (len(path), path)))
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
        """Every node of depth d has as many children as `widths[d]` says; raises ArgumentError likewise."""
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
        """Which of a layer's nodes, by their scores, are asked about: all."""
        return range(len(scores))

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of all nodes, by their scores, the tree ends with: all."""
        return range(len(scores))


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """Grows where the drafter is sure, as in EAGLE-2 (arXiv:2406.16858, 4.1 and 4.2).

    Of each layer the best nodes are asked about, by the product of the drafter's probabilities along their paths; each
    gets as many children. Of all these the best are kept. A parent's product is no less than its child's, and the
    shallower of equal nodes comes first, so that what is kept is a tree.

    Attributes:
        beams: nodes of a layer that are asked about, and children of each, 1 to 32.
        depth: layers, 1 to 1,024.
        tokens: nodes that are kept, 1 to 1,024.

    Raises:
        ArgumentError: a number out of range.
    """

    beams: int
    depth: int
    tokens: int

    def __post_init__(self) -> None:
        check_within("beams of a tree", self.beams, "[1, 32]")
        check_within("depth of a tree", self.depth, f"[1, {MOST_NODES}]")
        check_within("tokens of a tree", self.tokens, f"[1, {MOST_NODES}]")

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
        """Which of a layer's nodes, by their scores, are asked about: the best, in their own order."""
        return _best(scores, self.beams)

    def kept(self, scores: Sequence[float]) -> Sequence[int]:
        """Which of all nodes, by their scores, the tree ends with: the best, in their own order."""
        return _best(scores, self.tokens)


TreeShape = FixedTree | DynamicTree


def _count(widths: Sequence[int]) -> int:
    """Nodes of a tree with so many children by depth; of absurdly deep ones only some."""
    return sum(prod(widths[: depth + 1]) for depth in range(min(len(widths), MOST_NODES + 1)))


def _paths_of(widths: Sequence[int]) -> tuple[Path, ...]:
    """All nodes of a tree with so many children by depth."""
    paths: list[Path] = []
    layer: list[Path] = [()]
    for width in widths:
        layer = [(*path, rank) for path in layer for rank in range(width)]
        paths += layer
    return tuple(paths)


def _best(scores: Sequence[float], count: int) -> Sequence[int]:
    """The first of the largest scores, ascending."""
    if count >= len(scores):
        return range(len(scores))
    return sorted(sorted(range(len(scores)), key=lambda index: -scores[index])[:count])


def tree_shape(text: str) -> TreeShape:
    """A shape by its text: `4x2x1` (children by depth), `0+0.0+1` (paths of ranks), or `beam=4,depth=5,tokens=16`.

    Raises:
        ArgumentError: any other text, or a shape that cannot be; without `tokens` all that grows is kept.
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
