"""Counts of a recording of contexts, and its rules, checked on whole columns.

Letters: N nodes of some requests, R of these requests, M recorded models (smallest first, the target last).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import NODES, REQUESTS, TRIE_FILES, Rule, check_rules, size_of
from ..meta import MOST
from ..recording import RecordingSummary
from .columns import FURTHER, GRIDS, NodeCodes, further_layout
from .meta import TrieMeta
from .trie import NO_TOKEN, Floats, RequestRow, TrieRequest

_COUNTS = ("num_requests", "num_prompt_tokens", "num_trunk_tokens", "num_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieGroup:
    """Requests of one tag, or of all tags.

    Means are over the trunk contexts that wrote a token: all except the last context of each request.
    """

    num_requests: int  # in the group
    num_prompt_tokens: int  # all together
    num_trunk_tokens: int  # all together
    num_nodes: int  # all together
    # By model below the target, share of trunk contexts where it writes the target's token, 0 to 1; None without trunk
    # tokens.
    agreement: dict[str, float | None]
    # By pair `smaller/larger`, mean total variation distance on the trunk, 0 to 1; None without trunk tokens.
    mean_tvd: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieSummary(RecordingSummary[TrieMeta, TrieGroup]):
    """A recording at a glance."""

    nodes_per_trunk_token: float | None  # contexts recorded per trunk token; None without trunk tokens
    bytes_per_node: float | None  # of the files on the disk; None if the recording is in memory only


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
    def __init__(self, meta: TrieMeta) -> None:
        self._meta = meta
        self._counts: Counter[str] = Counter()
        self._agreeing = np.zeros(len(meta.models))
        self._distance = np.zeros(len(meta.pairs))

    def add(self, request: TrieRequest, agrees: NDArray[np.bool_], distance: Floats) -> None:
        self._counts["num_requests"] += 1
        self._counts["num_prompt_tokens"] += len(request.prompt)
        self._counts["num_trunk_tokens"] += agrees.shape[1]
        self._counts["num_nodes"] += request.num_nodes
        self._agreeing += agrees.sum(axis=1)
        self._distance += distance

    def group(self) -> TrieGroup:
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
    """Raise TraceFormatError for what cannot be the requests of the recording at `path`."""
    if not requests:
        raise TraceFormatError(path / REQUESTS, "id", "must name at least one request", [])
    seen: set[str] = set()
    for request_id, _, prompt, max_new_tokens, num_nodes, _ in requests:
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
    codes: NodeCodes,
    requests: Sequence[RequestRow],
    meta: TrieMeta,
    path: Path,
    *,
    first_request: int,
    first_row: int,
) -> None:
    """Check that the recording at `path` has one trie per request, with a trunk that the target would write.

    The requests are checked already, and in order from position `first_request` and row `first_row` on.

    Raises:
        TraceFormatError: see `docs/trace-format.md` for the list.
    """
    num_nodes = np.array([row.num_nodes for row in requests], dtype=np.int64)
    request = np.repeat(np.arange(len(num_nodes)), num_nodes)
    counts = codes["request"]
    in_order = Rule(
        "request", counts != request + first_request, "must count the requests up, num_nodes rows each", counts
    )
    check_rules(path / NODES, [in_order], lambda row: f"row {first_row + row}")
    start = (np.cumsum(num_nodes) - num_nodes)[request]
    own = np.arange(len(start)) - start
    nodes = _Nodes(
        codes=codes,
        meta=meta,
        own=own,
        parent_row=start + np.maximum(codes["parent"], 0),
        is_root=codes["parent"] == -1,
        budget=np.array([row.max_new_tokens for row in requests], dtype=np.int64)[request],
    )
    check_rules(
        path / NODES,
        chain.from_iterable(rules(nodes) for rules in (_places, _tokens, _trunk, _numbers, _branches, _further)),
        lambda row: f"request {requests[request[row]].request_id!r}, node {own[row]}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    codes: NodeCodes
    meta: TrieMeta
    own: NDArray[np.int64]  # [N] index of each node within its request
    parent_row: NDArray[np.int64]  # [N] row of the parent, once `_places` has checked it; a root's own row
    is_root: NDArray[np.bool_]  # [N]
    budget: NDArray[np.int64]  # [N] most trunk tokens of each node's request

    @property
    def greedy(self) -> bool:
        return self.meta.sampling.mode == "greedy"


def _places(nodes: _Nodes) -> Iterator[Rule]:
    """One root, which comes first; every other node after its parent, and one token deeper."""
    parent, depth, is_first = nodes.codes["parent"], nodes.codes["depth"], nodes.own == 0
    yield Rule("parent", is_first & ~nodes.is_root, "must be -1 at the first node, the root", parent)
    yield Rule("parent", ~is_first & nodes.is_root, "must not be -1, only the first node is a root", parent)
    wrong = ~is_first & ((parent < 0) | (parent >= nodes.own))
    yield Rule("parent", wrong, "must be the index of an earlier node of the request", parent)
    expected = np.where(nodes.is_root, 0, depth[nodes.parent_row].astype(np.int64) + 1)
    yield Rule("depth", depth != expected, "must be 0 at the root and the parent's plus 1", depth)


def _tokens(nodes: _Nodes) -> Iterator[Rule]:
    """Of the vocabulary, none at the root; no two children of one node with the same one (the second is the error)."""
    token, is_root, size = nodes.codes["token"], nodes.is_root, nodes.meta.vocab_size
    yield Rule("token", is_root & (token != -1), "must be 0 in the file (-1 in memory) at the root", token)
    inside = f"must lie in [0, {size})"
    yield Rule("token", ~is_root & ((token < 0) | (token >= size)), inside, token)
    for name, written in zip(nodes.meta.model_names, nodes.codes["next_token"], strict=True):
        yield Rule(f"{name}.next_token", (written < 0) | (written >= size), inside, written)
    keys = nodes.parent_row * (size + 1) + (token + 1)
    order = np.argsort(keys, kind="stable")
    wrong = np.zeros(len(keys), dtype=np.bool_)
    wrong[order[1:]] = keys[order[1:]] == keys[order[:-1]]
    yield Rule("token", wrong, "must differ from the other children of the same node", token)


def _trunk(nodes: _Nodes) -> Iterator[Rule]:
    """One path from the root, written by the target to its end: the budget, or an end-of-sequence token."""
    codes, parent_row, is_root = nodes.codes, nodes.parent_row, nodes.is_root
    on_trunk, token, depth = codes["on_trunk"], codes["token"], codes["depth"]
    yield Rule("on_trunk", is_root & ~on_trunk, "must be true at the root", on_trunk)
    after_root = on_trunk & ~is_root
    yield Rule("on_trunk", after_root & ~on_trunk[parent_row], "must be a path from the root", on_trunk)
    # Children of a node differ in their tokens, so a trunk that follows the target cannot fork.
    strays = after_root & (token != codes["next_token"][-1][parent_row])
    yield Rule("on_trunk", strays, "must follow the target's next_token", token)
    ended = on_trunk & np.isin(token, nodes.meta.eos_token_ids)
    yield Rule("on_trunk", after_root & ended[parent_row], "must end at an end-of-sequence token", token)
    too_deep = on_trunk & (depth > nodes.budget)
    yield Rule("depth", too_deep, "of the trunk must be at most max_new_tokens", depth)
    goes_on = np.zeros(len(on_trunk), dtype=np.bool_)
    goes_on[parent_row[after_root]] = True
    cut = on_trunk & ~goes_on & ~ended & (depth < nodes.budget)
    yield Rule("depth", cut, "of the trunk's end must be max_new_tokens where it is no end of sequence", depth)


def _numbers(nodes: _Nodes) -> Iterator[Rule]:
    """Codes within their grids, a top probability that is the largest, no probability of a root's token."""
    codes, names = nodes.codes, nodes.meta.model_names
    pairs = [f"{names[low]}.{names[high]}" for low, high in nodes.meta.pairs]
    for array, grid in GRIDS.items():
        if array != "branch_log_prob":
            fields = [f"tvd.{pair}" for pair in pairs] if array == "tvd" else [f"{name}.{array}" for name in names]
            for field, values in zip(fields, codes[array], strict=True):
                yield Rule(field, values > grid.high, f"must be a code of at most {grid.high}", values)
    for row, name in enumerate(names):
        own, top = codes["own_log_prob"][row], codes["top_log_prob"][row]
        yield Rule(f"{name}.own_log_prob", nodes.is_root & (own != 0), "must be 0 at the root", own)
        yield _top(f"{name}.top_log_prob", top, codes["next_log_prob"][row], greedy=nodes.greedy)


def _top(field: str, top: NDArray[Any], following: NDArray[Any], *, greedy: bool) -> Rule:
    """Codes count down from the largest probability."""
    words = "must equal next_log_prob if greedy, else be at least that; its code is wrong"
    return Rule(field, top != following if greedy else top > following, words, top)


def _branches(nodes: _Nodes) -> Iterator[Rule]:
    """Ranks of a node's children count up from 0, at most as many as were requested, best first."""
    codes, parent_row, is_root = nodes.codes, nodes.parent_row, nodes.is_root
    for row, model in enumerate(nodes.meta.tree_drafters):
        name, rank, ranked = nodes.meta.model_names[model], codes["rank"][row], codes["ranked"][row]
        branch, own = codes["branch_log_prob"][row], codes["own_log_prob"][model]
        yield Rule(f"{name}.rank", is_root & (rank != -1), "must be -1 at the root", rank)
        inside = "must be -1 or a rank below those asked for at the parent"
        yield Rule(f"{name}.rank", (rank < -1) | (rank >= np.where(is_root, 0, ranked[parent_row])), inside, rank)
        yield Rule(f"{name}.ranked", ranked < 0, "must be >= 0", ranked)
        first = (rank == 0) & (codes["token"] != codes["next_token"][model][parent_row])
        yield Rule(f"{name}.rank", first, "must be 0 of the model's next token only", rank)
        placed = np.flatnonzero(rank >= 0)
        placed = placed[np.lexsort((rank[placed], parent_row[placed]))]
        follows = np.zeros(len(placed), dtype=np.bool_)
        follows[1:] = parent_row[placed[1:]] == parent_row[placed[:-1]]
        wrong = np.zeros(len(rank), dtype=np.bool_)
        wrong[placed] = rank[placed] != np.where(follows, np.roll(rank[placed], 1) + 1, 0)
        yield Rule(f"{name}.rank", wrong, "must count up from 0 among the children of a node", rank)
        wrong[placed] = follows & (branch[placed] < np.roll(branch[placed], 1))
        yield Rule(f"{name}.branch_log_prob", wrong, "must not grow with the rank; its code is wrong", branch)
        count = np.bincount(parent_row[placed], minlength=len(rank))
        yield Rule(f"{name}.ranked", (ranked > 0) & (count == 0), "must have its branches as children", ranked)
        yield Rule(f"{name}.branch_log_prob", (rank < 0) & (branch != 0), "must be 0 without a rank", branch)
        if nodes.greedy:
            other = (rank >= 0) & (branch != own)
            yield Rule(f"{name}.branch_log_prob", other, "must equal own_log_prob if greedy", branch)


def _further(nodes: _Nodes) -> Iterator[Rule]:
    """Views at further depths: of tokens and on their grids, and only where the target has not read all."""
    size, num_models = nodes.meta.vocab_size, len(nodes.meta.models)
    for field, array, row, _ in further_layout(nodes.meta):
        assert row is not None
        name, values = array.removeprefix(FURTHER), nodes.codes[array][row]
        depth = 2 + (row // (num_models - 1) if name == "tvd" else row)
        # A token has a probability at the parent where the parent has a view.
        known = nodes.codes["depth"] >= depth + (name == "own_log_prob")
        if name == "next_token":
            low, most = np.where(known, 0, NO_TOKEN), np.where(known, size, NO_TOKEN + 1)
            words = f"must lie in [0, {size}), or be -1 where the target has read"
            yield Rule(field, (values < low) | (values >= most), words, values)
            continue
        high = GRIDS[name].high
        yield Rule(field, values > high, f"must be a code of at most {high}", values)
        yield Rule(field, ~known & (values != 0), "must be 0 where the target has read", values)
        if name == "top_log_prob":
            yield _top(field, values, nodes.codes[f"{FURTHER}next_log_prob"][row], greedy=nodes.greedy)
