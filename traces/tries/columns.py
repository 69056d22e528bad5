"""Requests of a recording as columns: all their nodes one after another, with probabilities as 16-bit codes.

Letters: N nodes of these requests, R requests, M recorded models (smallest first), P pairs of models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import NODES
from .features.columns import decoded, encoded
from .meta import TrieMeta
from .stored_resolution import GRIDS, LOG_PROBS, Grid
from .trie import Ints, TreeRanks, Trie, TrieRequest, split

Codes = NDArray[np.uint16]

PLAIN_FIELDS = ("parent", "token", "depth", "on_trunk", "next_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeColumns:
    """Nodes of requests that stand one after another in a recording; the fields mean what they mean in `Trie`.

    Parents count within their request.
    """

    request: Ints  # [N] position of the request in the recording
    parent: Ints  # [N]
    token: Ints  # [N]
    depth: Ints  # [N]
    on_trunk: NDArray[np.bool_]  # [N]
    next_token: Ints  # [M, N]
    next_log_prob: Codes  # [M, N] codes
    top_log_prob: Codes  # [M, N] codes
    gap: Codes  # [M, N] codes
    entropy: Codes  # [M, N] codes
    own_log_prob: Codes  # [M, N] codes
    tvd: Codes  # [P, N] codes
    rank: Ints  # [D, N]
    ranked: Ints  # [D, N]
    branch_log_prob: Codes  # [D, N] codes
    further: Mapping[str, NDArray[Any]]  # by column of `features.columns.layout`, [N] each


class RequestRow(NamedTuple):
    """What is stored of a request besides its nodes; the fields mean what they mean in `TrieRequest`."""

    request_id: str
    tag: str
    prompt: NDArray[np.int64]
    max_new_tokens: int
    num_nodes: int


def request_rows(requests: Iterable[TrieRequest]) -> list[RequestRow]:
    """The requests of a recording as they are stored."""
    return [
        RequestRow(one.request_id, one.tag, np.array(one.prompt, np.int64), one.max_new_tokens, one.num_nodes)
        for one in requests
    ]


def join(requests: Sequence[TrieRequest], meta: TrieMeta, path: Path, *, first_request: int) -> NodeColumns:
    """The columns of requests that are to lie in the recording at `path`, the first one at position `first_request`.

    Raises:
        TraceFormatError: an array of another shape or type, a number that is NaN or off its grid.
    """
    tries = [request.trie for request in requests]
    for request, trie in zip(requests, tries, strict=True):
        _check_arrays(meta, trie, request.request_id, path)
    sizes = [trie.num_nodes for trie in tries]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(trie, name) for trie in tries], axis=-1) for name in PLAIN_FIELDS
    }
    for name, grid in GRIDS.items():
        values = np.concatenate([getattr(trie, name) for trie in tries], axis=-1)
        arrays[name] = _encode(values, grid, name, path)
    arrays |= _joined_ranks(tries, meta, path)
    request_of = np.repeat(np.arange(first_request, first_request + len(sizes), dtype=np.int32), sizes)
    return NodeColumns(request=request_of, **arrays, further=encoded(tries, meta, path))


def tries(columns: NodeColumns, num_nodes: Sequence[int], meta: TrieMeta) -> tuple[Trie, ...]:
    """The tries of validated columns, `num_nodes` of each request."""
    arrays: dict[str, Any] = {name: getattr(columns, name) for name in PLAIN_FIELDS}
    values: dict[str, Any] = {name: grid.decode(getattr(columns, name)) for name, grid in GRIDS.items()}
    ranks = None
    if len(columns.rank):
        branch_log_prob = LOG_PROBS.decode(columns.branch_log_prob)
        ranks = TreeRanks(rank=columns.rank, ranked=columns.ranked, branch_log_prob=branch_log_prob)
    return split(Trie(**arrays, **values, ranks=ranks, features=decoded(columns.further, meta)), num_nodes)


def _joined_ranks(tries: Sequence[Trie], meta: TrieMeta, path: Path) -> dict[str, Any]:
    """Branches of all requests: no rows where no trees are recorded."""
    wanted, num_nodes = len(meta.tree_drafters), sum(trie.num_nodes for trie in tries)
    known = [trie.ranks for trie in tries if trie.ranks is not None]
    found = {len(ranks.rank) for ranks in known} | ({0} if len(known) < len(tries) else set())
    if found - {wanted}:
        rule = f"must be branches of {wanted} models in every request, as closure.trees says"
        raise TraceFormatError(path / NODES, "rank", rule, f"{sorted(found)}")
    if not wanted:
        none = np.zeros((0, num_nodes), dtype=np.int32)
        return {"rank": none, "ranked": none, "branch_log_prob": none.astype(np.uint16)}
    joined = {
        name: np.concatenate([getattr(ranks, name) for ranks in known], axis=-1)
        for name in ("rank", "ranked", "branch_log_prob")
    }
    return joined | {"branch_log_prob": _encode(joined["branch_log_prob"], LOG_PROBS, "branch_log_prob", path)}


def _check_arrays(meta: TrieMeta, trie: Trie, request_id: str, path: Path) -> None:
    rows = dict.fromkeys(("next_token", *GRIDS), len(meta.models)) | {"tvd": len(meta.pairs)}
    for name in (*PLAIN_FIELDS, *GRIDS):
        array: NDArray[Any] = getattr(trie, name)
        shape = (rows[name], trie.num_nodes) if name in rows else (trie.num_nodes,)
        kind = np.dtype(np.float64 if name in GRIDS else np.bool_ if name == "on_trunk" else np.int32)
        if array.shape != shape or array.dtype != kind:
            rule = f"must be a {kind} array of shape {shape} (request {request_id!r})"
            raise TraceFormatError(path / NODES, name, rule, f"{array.dtype} of shape {array.shape}")


def _encode(values: NDArray[np.float64], grid: Grid, name: str, path: Path) -> Codes:
    try:
        codes = grid.encode(values)
    except ValueError as error:
        raise TraceFormatError(path / NODES, name, "must be numbers on its grid", str(error)) from None
    off_grid = values != grid.decode(codes)
    if off_grid.any():
        rule = f"must be a multiple of {grid.step:g} in range (`stored_resolution`)"
        raise TraceFormatError(path / NODES, name, rule, float(values[off_grid][0]))
    return codes
