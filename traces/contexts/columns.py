"""Requests of a recording as columns: all their nodes one after another, with probabilities as 16-bit codes.

The resolution at which probabilities are observed: 16 bits, the same in a recording and on a real model.

A policy compares probabilities with thresholds. If a recording stored rounded numbers and the runtime showed
unrounded ones, the two would now and then decide differently. So both show the rounded number: log-probabilities are
multiples of 1/1024 nat, entropies of 1/4096 nat, gaps and distances of 1/32768. All fit an unsigned 16-bit integer.

Views at further depths as columns of a file, and what must hold of them.

Letters: N nodes, E further depths, O other models.

Letters: N nodes of these requests, R requests, M recorded models (smallest first), P pairs of models.

The Parquet side of a recording: column names, their types, and tables to arrays and back.

Letters: N nodes of some requests, M recorded models (smallest first), P pairs of models.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...base.errors import repeated
from ..errors import TraceFormatError
from ..folder import NODES
from .meta import TrieMeta
from .trie import NO_TOKEN, FeatureViews, Ints, TreeRanks, Trie, TrieRequest, feature_fields, joined, split

MAX_CODE = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One quantity's grid: value = sign x code x step, code an integer in [0, 65535].

    Attributes:
        step: distance of neighbouring values.
        sign: +1 or -1 (log-probabilities are stored by magnitude).
        high: largest code the quantity may take; larger magnitudes saturate for log-probabilities only.
    """

    step: float
    sign: int
    high: int

    def encode(self, values: NDArray[Any]) -> NDArray[np.uint16]:
        """Nearest codes; raises ValueError for NaN or a value of the wrong sign or beyond the grid."""
        scaled = np.rint(np.asarray(values, dtype=np.float64) * (self.sign / self.step))
        if np.isnan(scaled).any():
            raise ValueError("holds NaN")
        if self.sign < 0:
            scaled = np.minimum(scaled, self.high)
        # A float32 softmax may overshoot its bound by a rounding error; more than a step is a defect.
        if (scaled < -1).any() or (scaled > self.high + 1).any():
            raise ValueError(f"holds a value beyond {self.sign * self.high * self.step:g}")
        return np.clip(scaled, 0, self.high).astype(np.uint16)

    def decode(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """The values that codes stand for."""
        return codes.astype(np.float64) * (self.sign * self.step) + 0.0  # + 0.0: no negative zeros

    def round(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The nearest values on the grid; what a policy may see."""
        return self.decode(self.encode(values))

    def nearest(self, value: float) -> float:
        """As `round`, for one number: numpy takes many times as long over a few."""
        scaled = value * (self.sign / self.step)
        if scaled != scaled:
            raise ValueError("holds NaN")
        # Bounded before it is rounded, as an infinity has no nearest code.
        code = round(min(max(scaled, -2.0), self.high if self.sign < 0 else self.high + 2.0))
        if not -1 <= code <= self.high + 1:
            raise ValueError(f"holds a value beyond {self.sign * self.high * self.step:g}")
        return min(max(code, 0), self.high) * (self.sign * self.step) + 0.0


LOG_PROBS = Grid(step=1.0 / 1024.0, sign=-1, high=MAX_CODE)
ENTROPIES = Grid(step=1.0 / 4096.0, sign=1, high=MAX_CODE)
UNITS = Grid(step=1.0 / 32768.0, sign=1, high=32768)
# Of what is stored of a view, by name.
GRIDS: dict[str, Grid] = {
    "next_log_prob": LOG_PROBS,
    "top_log_prob": LOG_PROBS,
    "gap": UNITS,
    "entropy": ENTROPIES,
    "own_log_prob": LOG_PROBS,
    "tvd": UNITS,
}


Columns = Mapping[str, NDArray[Any]]


class Column(NamedTuple):
    """One column: its name in the file, and where it lies in `FeatureViews`."""

    name: str
    attribute: str
    row: int
    depth: int


def layout(meta: TrieMeta) -> Iterator[Column]:
    """The columns of a recording, in file order; none without such a drafter."""
    known = meta.features
    if known is None:
        return
    others = [name for name in meta.model_names if name != known.model]
    for row, depth in enumerate(range(2, known.depths + 1)):
        said = f"{known.model}@{depth}"
        for attribute in feature_fields():
            if attribute != "tvd":
                yield Column(f"{said}.{attribute}", attribute, row, depth)
        for place, other in enumerate(others):
            yield Column(f"tvd.{said}.{other}", "tvd", row * len(others) + place, depth)


def schema_fields(meta: TrieMeta) -> list[pa.Field]:
    """The columns as Parquet has them: tokens as int32, all else as 16-bit codes."""
    kinds = {"next_token": pa.int32()}
    return [pa.field(column.name, kinds.get(column.attribute, pa.uint16()), nullable=False) for column in layout(meta)]


def encoded(tries: Sequence[Trie], meta: TrieMeta, path: Path) -> Columns:
    """The columns of requests that lie one after another.

    Raises:
        TraceFormatError: views that the recording must not have, or must have and has not, of another shape or type, or
            off their grids.
    """
    views = [trie.features for trie in tries if trie.features is not None]
    rows = 0 if meta.features is None else meta.features.depths - 1
    if len(views) != (len(tries) if rows else 0):
        rule = f"must be there at {rows} further depths in every request, as features says"
        raise TraceFormatError(path / NODES, "features", rule, f"{len(views)} of {len(tries)}")
    if not rows:
        return {}
    for trie, said in zip(tries, views, strict=True):
        _check_feature_arrays(said, rows, len(meta.models) - 1, trie.num_nodes, path)
    whole = joined(views)
    return {column.name: _codes(getattr(whole, column.attribute)[column.row], column, path) for column in layout(meta)}


def decoded(columns: Columns, meta: TrieMeta) -> FeatureViews | None:
    """The views of validated columns; None where there are none."""
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in feature_fields()}
    for column in layout(meta):
        array = columns[column.name]
        grid = GRIDS.get(column.attribute)
        rows[column.attribute].append(array.astype(np.int32) if grid is None else grid.decode(array))
    if not rows["next_token"]:
        return None
    return FeatureViews(**{name: np.stack(parts) for name, parts in rows.items()})


def breaches(
    columns: Columns, meta: TrieMeta, depth: NDArray[Any], top_is_next: bool
) -> Iterator[tuple[NDArray[np.bool_], str, str, NDArray[Any]]]:
    """Of each rule: where it is broken `[N]`, the column, the rule and its values.

    Args:
        columns: as stored.
        meta: of the recording.
        depth: `[N]` of the nodes, in tokens after the prompt.
        top_is_next: whether tokens are the most probable ones.
    """
    for column in layout(meta):
        values = columns[column.name]
        # What was given at the parent is there where the parent has a view.
        known = depth > column.depth if column.attribute == "own_log_prob" else depth >= column.depth
        if column.attribute == "next_token":
            low = np.where(known, 0, NO_TOKEN)
            wrong = (values < low) | (values >= np.where(known, meta.vocab_size, NO_TOKEN + 1))
            yield wrong, column.name, f"must lie in [0, {meta.vocab_size}), or be -1 where the target has read", values
            continue
        high = GRIDS[column.attribute].high
        yield values > high, column.name, f"must be a code of at most {high}", values
        yield ~known & (values != 0), column.name, "must be 0 where the target has read", values
        if column.attribute == "top_log_prob":
            following = columns[column.name.replace("top_log_prob", "next_log_prob")]
            wrong = values != following if top_is_next else values > following
            rule = "must equal next_log_prob if greedy, else be at least that; its code is wrong"
            yield wrong, column.name, rule, values


def _check_feature_arrays(views: FeatureViews, rows: int, others: int, num_nodes: int, path: Path) -> None:
    for name in feature_fields():
        array: NDArray[Any] = getattr(views, name)
        shape = (rows * others if name == "tvd" else rows, num_nodes)
        kind = np.dtype(np.int32 if name == "next_token" else np.float64)
        if array.shape != shape or array.dtype != kind:
            rule = f"must be a {kind} array of shape {shape}"
            raise TraceFormatError(path / NODES, f"features.{name}", rule, f"{array.dtype} of shape {array.shape}")


def _codes(values: NDArray[Any], column: Column, path: Path) -> NDArray[Any]:
    grid = GRIDS.get(column.attribute)
    if grid is None:
        return values
    try:
        codes = grid.encode(values)
    except ValueError as error:
        raise TraceFormatError(path / NODES, column.name, "must be numbers on its grid", str(error)) from None
    off_grid = values != grid.decode(codes)
    if off_grid.any():
        rule = f"must be a multiple of {grid.step:g} in range"
        raise TraceFormatError(path / NODES, column.name, rule, float(values[off_grid][0]))
    return codes


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
        rule = f"must be a multiple of {grid.step:g} in range"
        raise TraceFormatError(path / NODES, name, rule, float(values[off_grid][0]))
    return codes


REQUEST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("prompt", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("max_new_tokens", pa.int32(), nullable=False),
        pa.field("num_nodes", pa.int32(), nullable=False),
    ]
)
_SMALL_VOCABULARY = 65536
_RANKS = ("rank", "ranked")
_FLAT_TYPES = {"request": pa.int32(), "parent": pa.int32(), "depth": pa.int32(), "on_trunk": pa.bool_()}


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A new Parquet file; the same tables give the same bytes. Closed at the end of the block, whole or not.

    Bytes of codes split into streams pack best by far: 49 bytes a node for four models, against 62 with dictionaries
    and 61 plain. Higher zstd levels win 2% more and cost seconds. Parents run along paths, so their differences pack.
    """
    encodings = {
        field.name: "DELTA_BINARY_PACKED" if field.name == "parent" else "BYTE_STREAM_SPLIT"
        for field in schema
        if pa.types.is_integer(field.type)
    }
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=9,
        use_dictionary=False,
        column_encoding=encodings,
        store_schema=False,
    ) as writer:
        yield writer


def node_schema(meta: TrieMeta, path: Path) -> pa.Schema:
    """Columns of `nodes.parquet`; raises TraceFormatError where model names make two columns the same."""
    fields = [pa.field(name, kind, nullable=False) for name, _, _, kind in _layout(meta)] + schema_fields(meta)
    doubles = sorted(set(repeated(field.name for field in fields)))
    if doubles:
        raise TraceFormatError(path, "models", "names must give different column names", doubles)
    return pa.schema(fields)


def to_request_table(requests: Sequence[RequestRow]) -> pa.Table:
    """The table of validated requests."""
    columns = zip(zip(*requests, strict=True), REQUEST_SCHEMA, strict=True)
    return pa.table([pa.array(values, type=field.type) for values, field in columns], schema=REQUEST_SCHEMA)


def from_request_table(table: pa.Table) -> list[RequestRow]:
    """The requests of a table of the right schema, not validated yet."""
    prompts = table.column("prompt").combine_chunks()
    # Without `flatten` and `value_lengths`, which import all functions of pyarrow.compute.
    offsets = prompts.offsets.to_numpy()
    first, last = (offsets[0], offsets[-1]) if len(offsets) else (0, 0)
    tokens = prompts.values.to_numpy()[first:last].astype(np.int64)
    known = table.drop_columns(["prompt"]).to_pydict()
    prompt = np.split(tokens, offsets[1:-1] - first)
    return list(map(RequestRow, known["id"], known["tag"], prompt, known["max_new_tokens"], known["num_nodes"]))


def to_table(columns: NodeColumns, meta: TrieMeta, path: Path) -> pa.Table:
    """The table of validated columns. A root has no token; its cell holds 0."""
    arrays = []
    for name, attribute, row, kind in _layout(meta):
        array = getattr(columns, attribute) if row is None else getattr(columns, attribute)[row]
        if name == "token":
            array = np.maximum(array, 0)
        arrays.append(pa.array(array.astype(kind.to_pandas_dtype(), copy=False)))
    arrays += [pa.array(columns.further[column.name]) for column in layout(meta)]
    return pa.table(arrays, schema=node_schema(meta, path))


def from_table(table: pa.Table, meta: TrieMeta) -> NodeColumns:
    """The columns of a table of the right schema, not validated yet."""
    arrays: dict[str, Any] = {}
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in ("next_token", *GRIDS, *_RANKS, "branch_log_prob")}
    for name, attribute, row, _ in _layout(meta):
        array = table.column(name).to_numpy()
        if row is None:
            arrays[attribute] = array
        else:
            rows[attribute].append(array)
    if meta.sampling.mode == "greedy":
        rows["top_log_prob"] = rows["next_log_prob"]
        own = [rows["own_log_prob"][model] for model in meta.tree_drafters]
        rows["branch_log_prob"] = [np.where(rank < 0, 0, log) for rank, log in zip(rows["rank"], own, strict=True)]
    for attribute, parts in rows.items():
        kind = np.int32 if attribute in ("next_token", *_RANKS) else np.uint16
        arrays[attribute] = np.stack(parts).astype(kind) if parts else np.empty((0, len(table)), kind)
    token = arrays["token"].astype(np.int32)
    arrays["token"] = np.where((arrays["parent"] == -1) & (token == 0), -1, token).astype(np.int32)
    return NodeColumns(**arrays, further={one.name: table.column(one.name).to_numpy() for one in layout(meta)})


def _layout(meta: TrieMeta) -> Iterator[tuple[str, str, int | None, pa.DataType]]:
    """Column name, attribute of `NodeColumns`, row of that attribute (None if flat) and type, in file order."""
    token_type = pa.uint16() if meta.vocab_size <= _SMALL_VOCABULARY else pa.int32()
    for name, kind in _FLAT_TYPES.items():
        yield name, name, None, kind
    yield "token", "token", None, token_type
    for row, model in enumerate(meta.model_names):
        yield f"{model}.next_token", "next_token", row, token_type
        for attribute in GRIDS:
            coded_apart = attribute != "top_log_prob" or meta.sampling.mode == "coupled"
            if attribute != "tvd" and coded_apart:
                yield f"{model}.{attribute}", attribute, row, pa.uint16()
    for row, (low, high) in enumerate(meta.pairs):
        yield f"tvd.{meta.model_names[low]}.{meta.model_names[high]}", "tvd", row, pa.uint16()
    for row, place in enumerate(meta.tree_drafters):
        model = meta.model_names[place]
        for attribute in _RANKS:
            yield f"{model}.{attribute}", attribute, row, pa.int16()
        if meta.sampling.mode == "coupled":
            yield f"{model}.branch_log_prob", "branch_log_prob", row, pa.uint16()
