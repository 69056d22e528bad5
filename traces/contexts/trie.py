"""The token trie of one request: contexts, every model's view of each, and the closure by which they grow.

Node 0 is the prompt; a node is its parent's context and one token more; parents come before their children.
The monotone closure holds, off the trunk, what chains of exact verifiers visit. Order the members below the target by
size: a path starts with a run of one member's own next tokens, of any length up to `reach`; runs of strictly smaller
members follow, each at most `run` tokens; all in all it leaves the trunk by at most `reach` tokens.

Letters: N nodes, M recorded models (smallest first), P = M(M-1)/2 pairs of models (`TrieMeta.pairs`). Of a drafter that
reads the target's states: D depths (`FeatureDepths.depths`), E = D - 1 further ones, O other models. Of the closure: S
members below the target, F contexts of one level (equal number of tokens off the trunk), C their children.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Views of each node, one row per view: W of them. Numbers are on the grids of `GRIDS`."""

    next_token: Ints  # `[W, N]` the token that is written here (argmax, or the coupled sample)
    next_log_prob: Floats  # `[W, N]` its log-probability, nats, <= 0
    top_log_prob: Floats  # `[W, N]` log of the largest probability (equals `next_log_prob` under greedy sampling)
    gap: Floats  # `[W, N]` largest probability less the second largest, 0 to 1
    entropy: Floats  # `[W, N]` nats, >= 0
    own_log_prob: Floats  # `[W, N]` log-probability of this node's token at the parent (0 at the root)
    tvd: Floats  # `[pairs, N]` total variation distance of pairs of models here, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureViews(NodeFacts):
    """Views of a drafter that reads the target's states where the target has not judged 2 to D tokens of the context.

    A row for each such depth, W = E; row 0 is depth 2. Its view at depth 1, where all except the last token are judged,
    is among the views of all models (`Trie`). Distances `[E O, N]` are to each other model here, grouped by depth.
    Where a node lies fewer tokens after the prompt than the depth, all of which the target has read in any case, there
    is no such view: the token is -1, and all else 0, as `own_log_prob` is where the parent has none.
    """

    def children(self, parent: Ints, token: Ints) -> Ints:
        """`[E, N]` the recorded child that each next token leads to, -1 at the recording's end or without a view."""
        return children_of(self.next_token, parent, token)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRanks:
    """Branches of the models that draft token trees. Letter: D such models (`TrieMeta.tree_drafters`)."""

    # `[D, N]` place of this node's token among the model's branches at the parent, 0 the best; -1 where none is
    # recorded.
    rank: Ints
    # `[D, N]` how many of the model's branches here were requested: all of these ranks are children, except tokens that
    # sampling leaves out.
    ranked: Ints
    # `[D, N]` score of this node's token as a branch of the model, nats, <= 0: the log of the softmax of the scores by
    # which tokens are chosen (its log-probability if greedy); 0 where rank is -1.
    branch_log_prob: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Trie(NodeFacts):
    """Contexts reached from one prompt, with a view of every model (W = M) and the distances of all pairs `[P, N]`."""

    parent: Ints  # `[N]` node index, -1 at the root
    token: Ints  # `[N]` the token that leads from the parent here, -1 at the root
    depth: Ints  # `[N]` tokens after the prompt, 0 at the root
    on_trunk: NDArray[np.bool_]  # `[N]` whether the target itself would write this context
    ranks: TreeRanks | None = None  # branches of token trees; None where none are recorded
    # views of the drafter that reads the target's states, at depths beyond 1; None where there is none
    features: FeatureViews | None = None

    @property
    def num_nodes(self) -> int:
        """Number of contexts."""
        return len(self.parent)

    @property
    def trunk(self) -> Ints:
        """Nodes of the trunk from the root down: entry i is the context after i emitted tokens."""
        nodes = np.flatnonzero(self.on_trunk).astype(np.int32)
        return nodes[np.argsort(self.depth[nodes], kind="stable")]

    @property
    def agreement(self) -> NDArray[np.bool_]:
        """`[M, T]` whether each model writes the target's token at the T trunk contexts that wrote one, in order."""
        written = self.next_token[:, self.trunk[:-1]]
        agrees: NDArray[np.bool_] = written == written[-1]
        return agrees

    def children(self) -> Ints:
        """`[M, N]` the recorded child that each model's next token leads to, -1 where the recording ends."""
        return children_of(self.next_token, self.parent, self.token)


def children_of(next_token: Ints, parent: Ints, token: Ints) -> Ints:
    """`[W, N]` the child that each of W next tokens `[W, N]` leads to in a trie, -1 where there is none."""
    found = np.full(next_token.shape, -1, dtype=np.int32)
    nodes = np.arange(1, len(parent), dtype=np.int32)
    above, leading = parent[1:], token[1:]
    # Looked up from the children: those of a node differ in their tokens, so at most one follows each writer.
    for child, written in zip(found, next_token, strict=True):
        follows = written[above] == leading
        child[above[follows]] = nodes[follows]
    return found


Part = TypeVar("Part", Trie, FeatureViews, TreeRanks)
PARTS = ("ranks", "features")


def names_of(kind: type[NodeFacts | TreeRanks]) -> tuple[str, ...]:
    """Names of the arrays of a trie or of one of its `PARTS`."""
    return tuple(field.name for field in fields(kind) if field.name not in PARTS)


def arrays_of(part: NodeFacts | TreeRanks) -> dict[str, Any]:
    """Its arrays by name; those of a trie without its `PARTS`."""
    return {name: getattr(part, name) for name in names_of(type(part))}


def joined(parts: Sequence[Part]) -> Part:
    """The parts of consecutive requests as one, at least one; of tries without their `PARTS`."""
    kind = type(parts[0])
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names_of(kind)
    }
    return kind(**arrays)


def split(joined: Trie, num_nodes: Sequence[int]) -> tuple[Trie, ...]:
    """The tries of consecutive requests, `num_nodes` each; array views, nothing is copied."""
    whole, tries = arrays_of(joined), list[Trie]()
    for start, end in pairwise(accumulate(num_nodes, initial=0)):
        nodes = slice(start, end)
        arrays: dict[str, Any] = {name: array[..., nodes] for name, array in whole.items()}
        for name in PARTS:
            if (part := getattr(joined, name)) is not None:
                arrays[name] = type(part)(**{each: array[:, nodes] for each, array in arrays_of(part).items()})
        tries.append(Trie(**arrays))
    return tuple(tries)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieRequest:
    """One recorded request.

    That of a stored recording reads its trie at each access (`LazyRequest`): read it once.
    """

    request_id: str  # unique in the recording
    tag: str  # task or domain
    prompt: tuple[int, ...]  # token ids, at least one
    max_new_tokens: int  # the budget the trunk was recorded with, >= 1
    trie: Trie  # its contexts
    session: str = ""  # of which it is a turn; "" if of none

    @property
    def num_nodes(self) -> int:
        """Number of contexts."""
        return self.trie.num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLevel:
    """The next level of the closure."""

    parent: Ints  # `[C]` index among the F contexts, ascending
    token: Ints  # `[C]` the token that leads from the parent here, ascending within a parent
    allowance: Ints  # `[S, C]` how many more tokens each member may write from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """Members that may write off the trunk. A drafter from the target's states is one writer per depth.

    Letter: W writers.
    """

    level: Ints  # `[W]` ascending; a larger one's run may be followed by runs of those of lower levels
    next: Ints  # `[W]` whose run continues after a token: its own, of such a drafter that a depth further, -1 none
    depth: Ints  # `[W]` of a drafter from the target's states, >= 1; 0 of others

    @classmethod
    def of(cls, num_models: int, *, reader: int | None = None, depths: int = 1) -> "Writers":
        """One for each model, except `depths` of them for the model at the index `reader`."""
        rows = [depths if model == reader else 1 for model in range(num_models)]
        level = np.repeat(np.arange(num_models, dtype=np.int32), rows)
        following, depth = np.arange(len(level), dtype=np.int32), np.zeros(len(level), dtype=np.int32)
        if reader is not None:
            at = np.flatnonzero(level == reader)
            depth[at] = np.arange(1, depths + 1)
            following[at] = [*at[1:], -1]
        return cls(level=level, next=following, depth=depth)

    def __len__(self) -> int:
        return len(self.level)


def grow(next_token: NDArray[np.integer], allowance: Ints, run: int, writers: Writers | None = None) -> NextLevel:
    """Children of one level: each member that may write here does; equal tokens are one child.

    A child written by a member leaves that member one token less; every smaller member may start a run of `run` tokens
    there. Where several members write the same token the child keeps the most that any of them allows.

    Args:
        next_token: `[S, F]` what each member writes; set the allowance to 0 where that stays on the trunk.
        allowance: `[S, F]` how many more tokens each member may write.
        run: most tokens of a member after a larger one's.
        writers: the S rows; None: a member each, by size.
    """
    known = writers or Writers.of(len(next_token))
    member, context = np.nonzero(allowance > 0)
    tokens = next_token[member, context].astype(np.int64)
    keys = (context.astype(np.int64) << 32) | tokens
    children, child = np.unique(keys, return_inverse=True)
    grown = np.zeros((len(next_token), len(children)), dtype=np.int32)
    going = known.next[member] >= 0
    np.maximum.at(grown, (known.next[member[going]], child[going]), allowance[member, context][going] - 1)
    for larger in range(1, len(next_token)):
        written = child[member == larger]
        smaller = int(np.searchsorted(known.level, known.level[larger]))
        grown[:smaller, written] = np.maximum(grown[:smaller, written], run)
    return NextLevel(
        parent=(children >> 32).astype(np.int32),
        token=(children & 0xFFFFFFFF).astype(np.int32),
        allowance=grown,
    )


class RequestRow(NamedTuple):
    """The stored fields of a request, as in `TrieRequest`, without its nodes."""

    request_id: str
    tag: str
    prompt: NDArray[np.int64]
    max_new_tokens: int
    num_nodes: int
    session: str = ""


@final
class LazyRequest(TrieRequest):
    """A request whose trie is made at each access and not kept, which saves memory.

    `dataclasses.replace` of it returns a plain `TrieRequest`.
    """

    __slots__ = ("_make", "_num_nodes")

    _make: Callable[[], Trie]
    _num_nodes: int

    def __new__(cls, **fields: object) -> Self:
        """Made from all fields, the trie included, it is a plain request that holds the trie."""
        whole = TrieRequest(**cast(dict[str, Any], fields)) if fields else super().__new__(cls)
        return cast(Self, whole)

    @classmethod
    def of(cls, known: "TrieRequest | RequestRow", make: Callable[[], Trie]) -> Self:
        """A request as `known`, whose trie, of as many contexts, `make` returns."""
        request = cls.__new__(cls)
        values = {name: getattr(known, name) for name in ("request_id", "tag", "max_new_tokens", "session")}
        prompt = known.prompt if isinstance(known.prompt, tuple) else tuple(known.prompt.tolist())
        for name, value in {**values, "prompt": prompt, "_num_nodes": known.num_nodes, "_make": make}.items():
            object.__setattr__(request, name, value)  # it is frozen
        return request

    def __getattr__(self, name: str) -> Trie:
        """Return the trie, the only field that is not set."""
        if name != "trie":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        return self._make()

    @property
    def num_nodes(self) -> int:
        """Number of contexts, without making the trie."""
        return self._num_nodes
