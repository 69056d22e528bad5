"""Views at further depths as columns of a file, and what must hold of them.

Letters: N nodes, E further depths, O other models.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import TraceFormatError
from ...folder import NODES
from ..meta import TrieMeta
from ..stored_resolution import GRIDS
from ..trie import Trie
from .views import NO_TOKEN, FeatureViews, feature_fields, joined

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
        _check_arrays(said, rows, len(meta.models) - 1, trie.num_nodes, path)
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


def _check_arrays(views: FeatureViews, rows: int, others: int, num_nodes: int, path: Path) -> None:
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
        rule = f"must be a multiple of {grid.step:g} in range (`stored_resolution`)"
        raise TraceFormatError(path / NODES, column.name, rule, float(values[off_grid][0]))
    return codes
