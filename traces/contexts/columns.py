"""A recording's nodes as columns: grids of 16-bit codes, names and types in the file, to arrays and back.

Recording and runtime both show numbers rounded to these grids, so that a policy's comparisons with thresholds have the
same result in both: log-probabilities are multiples of 1/1024 nat, entropies of 1/4096 nat, gaps and distances of
1/32768. All fit an unsigned 16-bit integer. Letters: N nodes of some consecutive requests, R such requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from .trie import (
    FeatureViews,
    NodeFacts,
    Part,
    RequestRow,
    TreeRanks,
    Trie,
    TrieRequest,
    arrays_of,
    joined,
    names_of,
    split,
)

MAX_CODE = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeGrid:
    """One quantity's grid: value = sign x code x step, code an integer in [0, 65535]."""

    step: float  # distance of neighbouring values
    sign: int  # +1 or -1 (log-probabilities are stored by magnitude)
    high: int  # largest code the quantity may take; larger magnitudes saturate for log-probabilities only

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
        """The values of codes."""
        return codes.astype(np.float64) * (self.sign * self.step) + 0.0  # + 0.0: no negative zeros

    def round(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The nearest values on the grid; what a policy may see."""
        return self.decode(self.encode(values))

    def nearest(self, value: float) -> float:
        """As `round`, for one number: numpy is many times slower for a few."""
        scaled = value * (self.sign / self.step)
        if scaled != scaled:
            raise ValueError("holds NaN")
        # Bounded before it is rounded, as an infinity has no nearest code.
        code = round(min(max(scaled, -2.0), self.high if self.sign < 0 else self.high + 2.0))
        if not -1 <= code <= self.high + 1:
            raise ValueError(f"holds a value beyond {self.sign * self.high * self.step:g}")
        return min(max(code, 0), self.high) * (self.sign * self.step) + 0.0


LOG_PROBS = CodeGrid(step=1.0 / 1024.0, sign=-1, high=MAX_CODE)
ENTROPIES = CodeGrid(step=1.0 / 4096.0, sign=1, high=MAX_CODE)
UNITS = CodeGrid(step=1.0 / 32768.0, sign=1, high=32768)
# Grids of the arrays that hold numbers, by name; the others hold tokens, counts and flags.
GRIDS: dict[str, CodeGrid] = {
    "next_log_prob": LOG_PROBS,
    "top_log_prob": LOG_PROBS,
    "gap": UNITS,
    "entropy": ENTROPIES,
    "own_log_prob": LOG_PROBS,
    "tvd": UNITS,
    "branch_log_prob": LOG_PROBS,
}
FURTHER = "features."


def rounded(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays by name, with numbers rounded to their grids."""
    return {name: GRIDS[name].round(array) if name in GRIDS else array for name, array in arrays.items()}


# The arrays of some requests by name, numbers as codes; those of `FeatureViews` after `FURTHER`, those that are not
# recorded without rows. `request` is the position of each node's request; parents count within their request.
NodeCodes = Mapping[str, NDArray[Any]]


class NodeColumn(NamedTuple):
    """A column of `nodes.parquet`."""

    name: str  # in the file
    array: str  # of `NodeCodes`
    row: int | None  # of the array; None of one without rows
    kind: pa.DataType  # in the file


_CODE = pa.uint16()
_SMALL_VOCABULARY = 65536
_FLAT_TYPES = {"request": pa.int32(), "parent": pa.int32(), "depth": pa.int32(), "on_trunk": pa.bool_()}
_SAID = tuple(name for name in names_of(NodeFacts) if name != "tvd")


def layout(meta: TrieMeta) -> Iterator[NodeColumn]:
    """The columns of a recording, in file order, without those that follow from others (under greedy sampling)."""
    greedy, names = meta.sampling.mode == "greedy", meta.model_names
    token_type = pa.uint16() if meta.vocab_size <= _SMALL_VOCABULARY else pa.int32()
    for name, kind in _FLAT_TYPES.items():
        yield NodeColumn(name, name, None, kind)
    yield NodeColumn("token", "token", None, token_type)
    for row, model in enumerate(names):
        for name in _SAID:
            if not (greedy and name == "top_log_prob"):
                yield NodeColumn(f"{model}.{name}", name, row, token_type if name == "next_token" else _CODE)
    for row, (low, high) in enumerate(meta.pairs):
        yield NodeColumn(f"tvd.{names[low]}.{names[high]}", "tvd", row, _CODE)
    for row, place in enumerate(meta.tree_drafters):
        for name in names_of(TreeRanks):
            if not (greedy and name in GRIDS):
                yield NodeColumn(f"{names[place]}.{name}", name, row, _CODE if name in GRIDS else pa.int16())
    yield from further_layout(meta)


def further_layout(meta: TrieMeta) -> Iterator[NodeColumn]:
    """The columns of `FeatureViews`; none without such a drafter."""
    if meta.features is None:
        return
    others = [name for name in meta.model_names if name != meta.features.model]
    for row in range(meta.features.depths - 1):
        speaker = f"{meta.features.model}@{row + 2}"
        for name in _SAID:
            yield NodeColumn(
                f"{speaker}.{name}", f"{FURTHER}{name}", row, pa.int32() if name == "next_token" else _CODE
            )
        for place, other in enumerate(others):
            yield NodeColumn(f"tvd.{speaker}.{other}", f"{FURTHER}tvd", row * len(others) + place, _CODE)


def request_rows(requests: Iterable[TrieRequest]) -> list[RequestRow]:
    """The requests of a recording as they are stored."""
    return [
        RequestRow(
            one.request_id, one.tag, np.array(one.prompt, np.int64), one.max_new_tokens, one.num_nodes, one.session
        )
        for one in requests
    ]


def join(requests: Sequence[TrieRequest], meta: TrieMeta, path: Path, *, first_request: int) -> NodeCodes:
    """The arrays of requests to be written to the recording at `path`, the first one at position `first_request`.

    Raises:
        TraceFormatError: an array of another shape or type, a number that is NaN or off its grid, views or branches
            that the recording must not have, or lacks.
    """
    tries = [request.trie for request in requests]
    for request, trie in zip(requests, tries, strict=True):
        rows = dict.fromkeys(_SAID, len(meta.models)) | {"tvd": len(meta.pairs)}
        _check_arrays(trie, rows, trie.num_nodes, "", f" (request {request.request_id!r})", path)
    codes = {name: _encoded(values, name, name, path) for name, values in arrays_of(joined(tries)).items()}
    sizes = [trie.num_nodes for trie in tries]
    codes["request"] = np.repeat(np.arange(first_request, first_request + len(sizes), dtype=np.int32), sizes)
    for name, values in _joined_ranks(tries, meta, path).items():
        codes[name] = _encoded(values, name, name, path)
    return codes | _joined_features(tries, meta, path)


def _joined_ranks(tries: Sequence[Trie], meta: TrieMeta, path: Path) -> dict[str, Any]:
    """Branches of all requests: no rows where no trees are recorded."""
    wanted = len(meta.tree_drafters)
    known = [trie.ranks for trie in tries if trie.ranks is not None]
    found = {len(ranks.rank) for ranks in known} | ({0} if len(known) < len(tries) else set())
    if found - {wanted}:
        rule = f"must be branches of {wanted} models in every request, as closure.trees says"
        raise TraceFormatError(path / NODES, "rank", rule, f"{sorted(found)}")
    if wanted:
        return arrays_of(joined(known))
    return dict.fromkeys(names_of(TreeRanks), np.zeros((0, sum(trie.num_nodes for trie in tries)), dtype=np.int32))


def _joined_features(tries: Sequence[Trie], meta: TrieMeta, path: Path) -> dict[str, Any]:
    """Views at further depths of all requests: nothing where there are none."""
    views = [trie.features for trie in tries if trie.features is not None]
    depths = 0 if meta.features is None else meta.features.depths - 1
    if len(views) != (len(tries) if depths else 0):
        rule = f"must be there at {depths} further depths in every request, as features says"
        raise TraceFormatError(path / NODES, "features", rule, f"{len(views)} of {len(tries)}")
    if not depths:
        return {}
    rows = dict.fromkeys(_SAID, depths) | {"tvd": depths * (len(meta.models) - 1)}
    for trie, said in zip(tries, views, strict=True):
        _check_arrays(said, rows, trie.num_nodes, FURTHER, "", path)
    arrays = arrays_of(joined(views))
    codes: dict[str, list[NDArray[Any]]] = {f"{FURTHER}{name}": [] for name in arrays}
    for column in further_layout(meta):
        name = column.array.removeprefix(FURTHER)
        codes[column.array].append(_encoded(arrays[name][column.row], name, column.name, path))
    return {name: np.stack(parts) for name, parts in codes.items()}


def _check_arrays(
    part: NodeFacts, rows: Mapping[str, int], num_nodes: int, prefix: str, where: str, path: Path
) -> None:
    for name, array in arrays_of(part).items():
        shape = (rows[name], num_nodes) if name in rows else (num_nodes,)
        kind = np.dtype(np.float64 if name in GRIDS else np.bool_ if name == "on_trunk" else np.int32)
        if array.shape != shape or array.dtype != kind:
            rule = f"must be a {kind} array of shape {shape}{where}"
            raise TraceFormatError(path / NODES, f"{prefix}{name}", rule, f"{array.dtype} of shape {array.shape}")


def _encoded(values: NDArray[Any], name: str, field: str, path: Path) -> NDArray[Any]:
    """The codes of numbers; arrays without a grid as they are."""
    grid = GRIDS.get(name)
    if grid is None:
        return values
    try:
        codes = grid.encode(values)
    except ValueError as error:
        raise TraceFormatError(path / NODES, field, "must be numbers on its grid", str(error)) from None
    off_grid = values != grid.decode(codes)
    if off_grid.any():
        rule = f"must be a multiple of {grid.step:g} in range"
        raise TraceFormatError(path / NODES, field, rule, float(values[off_grid][0]))
    return codes


def tries(codes: NodeCodes, num_nodes: Sequence[int]) -> tuple[Trie, ...]:
    """The tries of validated codes, `num_nodes` of each request."""

    def decoded(kind: type[Part], prefix: str = "") -> Part:
        arrays: dict[str, Any] = {}
        for name in names_of(kind):
            grid, values = GRIDS.get(name), codes[f"{prefix}{name}"]
            arrays[name] = values if grid is None else grid.decode(values)
        return kind(**arrays)

    ranks = decoded(TreeRanks) if len(codes["rank"]) else None
    features = decoded(FeatureViews, FURTHER) if f"{FURTHER}next_token" in codes else None
    return split(replace(decoded(Trie), ranks=ranks, features=features), num_nodes)


REQUEST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("prompt", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
        pa.field("max_new_tokens", pa.int32(), nullable=False),
        pa.field("num_nodes", pa.int32(), nullable=False),
        pa.field("session", pa.string(), nullable=False),
    ]
)
# Of recordings without sessions.
SINGLE_SCHEMA = REQUEST_SCHEMA.remove(REQUEST_SCHEMA.get_field_index("session"))


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


def to_request_table(requests: Sequence[RequestRow]) -> pa.Table:
    """The table of validated requests; without a column of sessions where there are none."""
    schema = REQUEST_SCHEMA if any(row.session for row in requests) else SINGLE_SCHEMA
    columns = zip(schema, zip(*requests, strict=True), strict=False)
    return pa.table([pa.array(values, type=field.type) for field, values in columns], schema=schema)


def from_request_table(table: pa.Table) -> list[RequestRow]:
    """The requests of a table of the right schema, not validated yet."""
    prompts = table.column("prompt").combine_chunks()
    # Without `flatten` and `value_lengths`, which import all functions of pyarrow.compute.
    offsets = prompts.offsets.to_numpy()
    first, last = (offsets[0], offsets[-1]) if len(offsets) else (0, 0)
    tokens = prompts.values.to_numpy()[first:last].astype(np.int64)
    known = table.drop_columns(["prompt"]).to_pydict()
    prompt = np.split(tokens, offsets[1:-1] - first)
    sessions = known.get("session", [""] * len(prompt))
    return list(
        map(RequestRow, known["id"], known["tag"], prompt, known["max_new_tokens"], known["num_nodes"], sessions)
    )


def node_schema(meta: TrieMeta, path: Path) -> pa.Schema:
    """Columns of `nodes.parquet`; raises TraceFormatError where model names make two columns the same."""
    fields = [pa.field(column.name, column.kind, nullable=False) for column in layout(meta)]
    doubles = sorted(set(repeated(field.name for field in fields)))
    if doubles:
        raise TraceFormatError(path, "models", "names must give different column names", doubles)
    return pa.schema(fields)


def to_table(codes: NodeCodes, meta: TrieMeta, path: Path) -> pa.Table:
    """The table of validated codes. A root has no token; its cell holds 0."""
    arrays = []
    for column in layout(meta):
        array = codes[column.array] if column.row is None else codes[column.array][column.row]
        if column.name == "token":
            array = np.maximum(array, 0)
        arrays.append(pa.array(array.astype(column.kind.to_pandas_dtype(), copy=False)))
    return pa.table(arrays, schema=node_schema(meta, path))


def from_table(table: pa.Table, meta: TrieMeta) -> NodeCodes:
    """The codes of a table of the right schema, not validated yet."""
    flat: dict[str, NDArray[Any]] = {}
    rows: dict[str, list[NDArray[Any]]] = {name: [] for name in (*names_of(NodeFacts), *names_of(TreeRanks))}
    for column in layout(meta):
        array = table.column(column.name).to_numpy()
        if column.row is None:
            flat[column.array] = array
        else:
            rows.setdefault(column.array, []).append(array)
    if meta.sampling.mode == "greedy":
        rows["top_log_prob"] = rows["next_log_prob"]
        own = [rows["own_log_prob"][model] for model in meta.tree_drafters]
        rows["branch_log_prob"] = [np.where(rank < 0, 0, log) for rank, log in zip(rows["rank"], own, strict=True)]
    for name, parts in rows.items():
        kind = np.uint16 if name.removeprefix(FURTHER) in GRIDS else np.int32
        flat[name] = np.stack(parts).astype(kind) if parts else np.empty((0, len(table)), kind)
    token = flat["token"].astype(np.int32)
    flat["token"] = np.where((flat["parent"] == -1) & (token == 0), -1, token).astype(np.int32)
    return flat
