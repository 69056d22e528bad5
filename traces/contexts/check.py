"""What must hold of a recording, checked on whole columns; the first breach is named with its request and node.

What a recording holds, as plain data: for `paceline trace inspect`.

Letters: N nodes of some requests, R of these requests, M recorded models (smallest first, the target last).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import NODES, REQUESTS, TRIE_FILES, size_of
from ..meta import MOST
from ..recording import Summary
from .columns import GRIDS, NodeColumns, RequestRow, breaches
from .meta import TrieMeta
from .trie import Floats, TrieRequest

_COUNTS = ("num_requests", "num_prompt_tokens", "num_trunk_tokens", "num_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieGroup:
    """Requests of one tag, or of all tags.

    Means are over the trunk contexts that wrote a token: all but the last context of each request.

    Attributes:
        num_requests: in the group.
        num_prompt_tokens: all together.
        num_trunk_tokens: all together.
        num_nodes: all together.
        agreement: by model below the target, share of trunk contexts where it writes the target's token, 0 to 1; None
            without trunk tokens.
        mean_tvd: by pair `smaller/larger`, mean total variation distance on the trunk, 0 to 1; None without trunk
            tokens.
    """

    num_requests: int
    num_prompt_tokens: int
    num_trunk_tokens: int
    num_nodes: int
    agreement: dict[str, float | None]
    mean_tvd: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieSummary(Summary[TrieMeta, TrieGroup]):
    """A recording at a glance.

    Attributes:
        nodes_per_trunk_token: contexts recorded per trunk token; None without trunk tokens.
        bytes_per_node: of the files on the disk; None if the recording came from memory.
    """

    nodes_per_trunk_token: float | None
    bytes_per_node: float | None


def summary_of(meta: TrieMeta, requests: Sequence[TrieRequest], path: Path | None) -> TrieSummary:
    """Count and average a recording, in one pass; `path` is where it was read from, if it was."""
    everything, by_tag = _Sums(meta), dict[str, _Sums]()
    for request in requests:
        trie = request.trie
        agrees, distance = trie.agreement, trie.tvd[:, trie.trunk[:-1]].sum(axis=1)
        for sums in (everything, by_tag.setdefault(request.tag, _Sums(meta))):
            sums.add(request, agrees, distance)
    total = everything.group()
    size_bytes = size_of(path, TRIE_FILES)
    return TrieSummary(
        meta=meta,
        total=total,
        by_tag={tag: sums.group() for tag, sums in by_tag.items()},
        nodes_per_trunk_token=total.num_nodes / total.num_trunk_tokens if total.num_trunk_tokens else None,
        size_bytes=size_bytes,
        bytes_per_node=None if size_bytes is None else size_bytes / total.num_nodes,
    )


class _Sums:
    """What requests of a group add up to."""

    def __init__(self, meta: TrieMeta) -> None:
        self._meta = meta
        self._counts: Counter[str] = Counter()
        self._agreeing = np.zeros(len(meta.models))
        self._distance = np.zeros(len(meta.pairs))

    def add(self, request: TrieRequest, agrees: NDArray[np.bool_], distance: Floats) -> None:
        """One more request, its agreement on the trunk and its distances there, summed."""
        self._counts["num_requests"] += 1
        self._counts["num_prompt_tokens"] += len(request.prompt)
        self._counts["num_trunk_tokens"] += agrees.shape[1]
        self._counts["num_nodes"] += request.num_nodes
        self._agreeing += agrees.sum(axis=1)
        self._distance += distance

    def group(self) -> TrieGroup:
        """The group as it is told."""
        names, num_tokens = self._meta.model_names, self._counts["num_trunk_tokens"]
        pairs = [f"{names[low]}/{names[high]}" for low, high in self._meta.pairs]
        return TrieGroup(
            **{name: self._counts[name] for name in _COUNTS},
            agreement=_means(names[:-1], self._agreeing[:-1], num_tokens),
            mean_tvd=_means(pairs, self._distance, num_tokens),
        )


def _means(names: Iterable[str], sums: Floats, count: int) -> dict[str, float | None]:
    return {name: float(value) / count if count else None for name, value in zip(names, sums, strict=True)}


def check_requests(requests: Sequence[RequestRow], meta: TrieMeta, path: Path) -> None:
    """Refuse what cannot be the requests of the recording at `path`.

    Raises:
        TraceFormatError: no requests, duplicate ids, an empty prompt, a token outside the vocabulary, no budget, no
            nodes.
    """
    if not requests:
        raise TraceFormatError(path / REQUESTS, "id", "must name at least one request", [])
    seen: set[str] = set()
    for request_id, _, prompt, max_new_tokens, num_nodes in requests:
        if request_id in seen:
            raise TraceFormatError(path / REQUESTS, "id", "must be unique", request_id)
        seen.add(request_id)
        where = f"(request {request_id!r})"
        if not len(prompt):
            raise TraceFormatError(path / REQUESTS, "prompt", f"must hold at least one token {where}", [])
        if prompt.min() < 0 or prompt.max() >= meta.vocab_size:
            outside = prompt[(prompt < 0) | (prompt >= meta.vocab_size)]
            rule = f"must hold tokens in [0, {meta.vocab_size}) {where}"
            raise TraceFormatError(path / REQUESTS, "prompt", rule, int(outside[0]))
        if not 1 <= max_new_tokens <= MOST:
            rule = f"must lie in [1, {MOST}] {where}"
            raise TraceFormatError(path / REQUESTS, "max_new_tokens", rule, max_new_tokens)
        if num_nodes < 1:
            raise TraceFormatError(path / REQUESTS, "num_nodes", f"must be >= 1 {where}", num_nodes)


def check_nodes(
    columns: NodeColumns,
    requests: Sequence[RequestRow],
    meta: TrieMeta,
    path: Path,
    *,
    first_request: int,
    first_row: int,
) -> None:
    """Refuse what is not one trie per request, with a trunk that the target would write, in the recording at `path`.

    Args:
        columns: the nodes of these requests.
        requests: some that stand one after another in the recording, checked.
        meta: of the recording.
        path: of the recording.
        first_request: position of the first one in the recording.
        first_row: of its nodes.

    Raises:
        TraceFormatError: see `docs/trace-format.md` for the list.
    """
    num_nodes = np.array([row.num_nodes for row in requests], dtype=np.int64)
    request = np.repeat(np.arange(len(num_nodes)), num_nodes)
    _check_order(columns, request + first_request, path, first_row)
    nodes = _Nodes(
        columns=columns,
        meta=meta,
        path=path,
        request_id=[row.request_id for row in requests],
        request=request,
        start=(np.cumsum(num_nodes) - num_nodes)[request],
        budget=np.array([row.max_new_tokens for row in requests], dtype=np.int64)[request],
    )
    nodes.check_parents()
    nodes.check_depths()
    nodes.check_tokens()
    nodes.check_children()
    nodes.check_trunk()
    nodes.check_quantities()
    nodes.check_branches()
    for wrong, field, rule, values in breaches(columns.further, meta, columns.depth, meta.sampling.mode == "greedy"):
        nodes.refuse(wrong, field, rule, values)


def _check_order(columns: NodeColumns, expected: NDArray[np.int64], path: Path, first_row: int) -> None:
    wrong = columns.request != expected
    if wrong.any():
        row = int(np.argmax(wrong))
        rule = f"must count the requests up, num_nodes rows each (row {first_row + row})"
        raise TraceFormatError(path / NODES, "request", rule, int(columns.request[row]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """The columns, and what every check needs.

    Attributes:
        columns: to check.
        meta: of the recording.
        path: of the recording.
        request_id: `[R]`.
        request: `[N]` index of each node's request among these.
        start: `[N]` row of the root of each node's request.
        budget: `[N]` most trunk tokens of each node's request.
    """

    columns: NodeColumns
    meta: TrieMeta
    path: Path
    request_id: list[str]
    request: NDArray[np.int64]
    start: NDArray[np.int64]
    budget: NDArray[np.int64]

    @property
    def own(self) -> NDArray[np.int64]:
        """`[N]` index of each node within its request."""
        return np.arange(len(self.start)) - self.start

    @property
    def parent_row(self) -> NDArray[np.int64]:
        """`[N]` row of each node's parent; a root's own row (once `check_parents` has passed)."""
        return self.start + np.maximum(self.columns.parent, 0)

    def refuse(self, wrong: NDArray[np.bool_], field: str, rule: str, values: NDArray[Any]) -> None:
        """Raise TraceFormatError for the first row that is wrong, if any is."""
        if not wrong.any():
            return
        row = int(np.argmax(wrong))
        request_id = self.request_id[int(self.request[row])]
        where = f"(request {request_id!r}, node {int(self.own[row])})"
        raise TraceFormatError(self.path / NODES, field, f"{rule} {where}", values[row].item())

    def check_parents(self) -> None:
        """One root, which comes first; every other node after its parent."""
        parent, is_first = self.columns.parent, self.own == 0
        self.refuse(is_first & (parent != -1), "parent", "must be -1 at the first node, the root", parent)
        self.refuse(~is_first & (parent == -1), "parent", "must not be -1, only the first node is a root", parent)
        wrong = ~is_first & ((parent < 0) | (parent >= self.own))
        self.refuse(wrong, "parent", "must be the index of an earlier node of the request", parent)

    def check_depths(self) -> None:
        """0 at the root, and one more than the parent's."""
        depth, is_root = self.columns.depth, self.columns.parent == -1
        expected = np.where(is_root, 0, depth[self.parent_row].astype(np.int64) + 1)
        self.refuse(depth != expected, "depth", "must be 0 at the root and the parent's plus 1", depth)

    def check_tokens(self) -> None:
        """Tokens of the vocabulary; none at the root."""
        token, is_root, size = self.columns.token, self.columns.parent == -1, self.meta.vocab_size
        self.refuse(is_root & (token != -1), "token", "must be 0 in the file (-1 in memory) at the root", token)
        inside = f"must lie in [0, {size})"
        self.refuse(~is_root & ((token < 0) | (token >= size)), "token", inside, token)
        for name, next_token in zip(self.meta.model_names, self.columns.next_token, strict=True):
            self.refuse((next_token < 0) | (next_token >= size), f"{name}.next_token", inside, next_token)

    def check_children(self) -> None:
        """No two children of one node with the same token (the second one is refused)."""
        token = self.columns.token
        keys = self.parent_row * (self.meta.vocab_size + 1) + (token + 1)
        order = np.argsort(keys, kind="stable")
        wrong = np.zeros(len(keys), dtype=np.bool_)
        wrong[order[1:]] = keys[order[1:]] == keys[order[:-1]]
        self.refuse(wrong, "token", "must differ from the other children of the same node", token)

    def check_trunk(self) -> None:
        """One path from the root, written by the target to its end: the budget, or an end-of-sequence token."""
        columns, parent_row = self.columns, self.parent_row
        on_trunk, is_root = columns.on_trunk, columns.parent == -1
        self.refuse(is_root & ~on_trunk, "on_trunk", "must be true at the root", on_trunk)
        after_root = on_trunk & ~is_root
        self.refuse(after_root & ~on_trunk[parent_row], "on_trunk", "must be a path from the root", on_trunk)
        target_token = columns.next_token[-1][parent_row]
        # Children of a node differ in their tokens, so following the target also means not to fork.
        strays = after_root & (columns.token != target_token)
        self.refuse(strays, "on_trunk", "must follow the target's next_token", columns.token)
        ended = on_trunk & np.isin(columns.token, self.meta.eos_token_ids)
        self.refuse(after_root & ended[parent_row], "on_trunk", "must end at an end-of-sequence token", columns.token)
        too_deep = on_trunk & (columns.depth > self.budget)
        self.refuse(too_deep, "depth", "of the trunk must be at most max_new_tokens", columns.depth)
        goes_on = np.zeros(len(on_trunk), dtype=np.bool_)
        goes_on[parent_row[after_root]] = True
        cut = on_trunk & ~goes_on & ~ended & (columns.depth < self.budget)
        rule = "of the trunk's end must be max_new_tokens where it is no end of sequence"
        self.refuse(cut, "depth", rule, columns.depth)

    def check_quantities(self) -> None:
        """Codes within their grids, a top probability that is one, no probability of a root's token."""
        pairs = [f"{self.meta.model_names[low]}.{self.meta.model_names[high]}" for low, high in self.meta.pairs]
        for attribute, grid in GRIDS.items():
            names = pairs if attribute == "tvd" else self.meta.model_names
            for name, codes in zip(names, getattr(self.columns, attribute), strict=True):
                field = f"tvd.{name}" if attribute == "tvd" else f"{name}.{attribute}"
                self.refuse(codes > grid.high, field, f"must be a code of at most {grid.high}", codes)
        is_root = self.columns.parent == -1
        for row, name in enumerate(self.meta.model_names):
            own, top, following = (
                getattr(self.columns, attribute)[row] for attribute in ("own_log_prob", "top_log_prob", "next_log_prob")
            )
            self.refuse(is_root & (own != 0), f"{name}.own_log_prob", "must be 0 at the root", own)
            wrong = top != following if self.meta.sampling.mode == "greedy" else top > following
            rule = "must equal next_log_prob if greedy, else be at least that; its code is wrong"
            self.refuse(wrong, f"{name}.top_log_prob", rule, top)

    def check_branches(self) -> None:
        """Ranks of a node's children count up from 0, at most as many as were asked for, best first."""
        parent_row, is_root, greedy = self.parent_row, self.columns.parent == -1, self.meta.sampling.mode == "greedy"
        for row, model in enumerate(self.meta.tree_drafters):
            name, rank, ranked = self.meta.model_names[model], self.columns.rank[row], self.columns.ranked[row]
            branch, own = self.columns.branch_log_prob[row], self.columns.own_log_prob[model]
            self.refuse(is_root & (rank != -1), f"{name}.rank", "must be -1 at the root", rank)
            inside = "must be -1 or a rank below those asked for at the parent"
            self.refuse((rank < -1) | (rank >= np.where(is_root, 0, ranked[parent_row])), f"{name}.rank", inside, rank)
            self.refuse(ranked < 0, f"{name}.ranked", "must be >= 0", ranked)
            first = (rank == 0) & (self.columns.token != self.columns.next_token[model][parent_row])
            self.refuse(first, f"{name}.rank", "must be 0 of the model's next token only", rank)
            nodes = np.flatnonzero(rank >= 0)
            nodes = nodes[np.lexsort((rank[nodes], parent_row[nodes]))]
            follows = np.zeros(len(nodes), dtype=np.bool_)
            follows[1:] = parent_row[nodes[1:]] == parent_row[nodes[:-1]]
            wrong = np.zeros(len(rank), dtype=np.bool_)
            wrong[nodes] = rank[nodes] != np.where(follows, np.roll(rank[nodes], 1) + 1, 0)
            self.refuse(wrong, f"{name}.rank", "must count up from 0 among the children of a node", rank)
            wrong[nodes] = follows & (branch[nodes] < np.roll(branch[nodes], 1))
            best = "must not grow with the rank; its code is wrong"
            self.refuse(wrong, f"{name}.branch_log_prob", best, branch)
            count = np.bincount(parent_row[nodes], minlength=len(rank))
            self.refuse((ranked > 0) & (count == 0), f"{name}.ranked", "must have its branches as children", ranked)
            self.refuse((rank < 0) & (branch != 0), f"{name}.branch_log_prob", "must be 0 without a rank", branch)
            if greedy:
                other = (rank >= 0) & (branch != own)
                self.refuse(other, f"{name}.branch_log_prob", "must equal own_log_prob if greedy", branch)
