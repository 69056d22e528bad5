"""Some requests of an imported recording as columns, named as in the files: gathered, split, and as tables.

Letters: Q requests, M answers (one per method of each request), S segments (one per drafter that ran on a request),
R rounds of all segments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..folder import REQUESTS, ROUNDS
from ..meta import MOST
from .rounds import KINDS, UNKNOWN, Rounds, RoundsRequest, is_known, joined

# Counts per request of the entries of these fields; other fields have one per request or per round.
LISTS = {
    "num_prompt": ("prompt",),
    "num_output": ("output",),
    "num_methods": ("methods", "num_tokens", "wall_s", "prefill_s"),
    "num_drafters": ("drafters", "num_rounds"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsColumns:
    """Requests and all their rounds; the fields mean what they mean in `RoundsRequest` and `Rounds`."""

    request_id: Sequence[str]  # [Q]
    tag: Sequence[str]  # [Q]
    session: Sequence[str]  # [Q]
    prompt_tokens: NDArray[np.int64]  # [Q]
    prompt: NDArray[np.int64]  # token ids of all requests, concatenated
    num_prompt: NDArray[np.int64]  # [Q] of them, how many of each request
    output: NDArray[np.int64]  # token ids of all requests, concatenated
    num_output: NDArray[np.int64]  # [Q] of them, how many of each request
    num_methods: NDArray[np.int64]  # [Q] methods of each request
    methods: Sequence[str]  # [M] names, "" for the target alone
    num_tokens: NDArray[np.int64]  # [M]
    wall_s: NDArray[np.float64]  # [M] NaN if unknown
    prefill_s: NDArray[np.float64]  # [M] NaN if unknown
    num_drafters: NDArray[np.int64]  # [Q] segments of each request
    drafters: Sequence[str]  # [S] names
    num_rounds: NDArray[np.int64]  # [S]
    rounds: Rounds  # [R] of all segments, concatenated


def gather(requests: Sequence[RoundsRequest], path: Path) -> RoundsColumns:
    """The columns of requests of a recording to be written to `path`.

    Raises:
        TraceFormatError: an array of another shape or type, a bad count, seconds of a method without a length.
    """
    for request in requests:
        _check_types(request, path)
    answers = [(request, method) for request in requests for method in request.num_tokens]
    segments = [rounds for request in requests for rounds in request.rounds.values()]
    return RoundsColumns(
        request_id=[request.request_id for request in requests],
        tag=[request.tag for request in requests],
        session=[request.session for request in requests],
        prompt_tokens=_numbers([request.prompt_tokens for request in requests]),
        prompt=_numbers([token for request in requests for token in request.prompt]),
        num_prompt=_numbers([len(request.prompt) for request in requests]),
        output=_numbers([token for request in requests for token in request.output]),
        num_output=_numbers([len(request.output) for request in requests]),
        num_methods=_numbers([len(request.num_tokens) for request in requests]),
        methods=[method for _, method in answers],
        num_tokens=_numbers([request.num_tokens[method] for request, method in answers]),
        wall_s=_seconds([(request.wall_s, method) for request, method in answers]),
        prefill_s=_seconds([(request.prefill_s, method) for request, method in answers]),
        num_drafters=_numbers([len(request.rounds) for request in requests]),
        drafters=[drafter for request in requests for drafter in request.rounds],
        num_rounds=_numbers([len(rounds.start) for rounds in segments]),
        rounds=joined(segments),
    )


def _check_types(request: RoundsRequest, path: Path) -> None:
    """Raise for values that do not fit the columns, or would change in them."""
    where = f"(request {request.request_id!r})"
    numbers = {"prompt_tokens": (request.prompt_tokens,), "num_tokens": tuple(request.num_tokens.values())}
    for field, values in (numbers | {"prompt": request.prompt, "output": request.output}).items():
        for value in values:
            if type(value) is not int or not 0 <= value <= MOST:
                raise TraceFormatError(path / REQUESTS, field, f"must be integers in [0, {MOST}] {where}", value)
    for field, seconds in (("wall_s", request.wall_s), ("prefill_s", request.prefill_s)):
        for method, known_s in seconds.items():
            if method not in request.num_tokens:
                raise TraceFormatError(path / REQUESTS, field, f"must name methods of num_tokens {where}", method)
            if not 0.0 < known_s < np.inf:
                rule = f"must be > 0 and finite {where[:-1]}, method {method!r})"
                raise TraceFormatError(path / REQUESTS, field, rule, known_s)
    for drafter, rounds in request.rounds.items():
        _check_arrays(rounds, f"{where[:-1]}, drafter {drafter!r})", path)


def _check_arrays(rounds: Rounds, where: str, path: Path) -> None:
    shape = (rounds.start.size,)
    for name, wanted in KINDS.items():
        array, kind = getattr(rounds, name), np.dtype(wanted)
        if array is None and name in UNKNOWN:
            continue
        if array.shape != shape or array.dtype != kind:
            rule = f"must be a {kind} array of shape {shape} {where}"
            raise TraceFormatError(path / ROUNDS, name, rule, f"{array.dtype} of shape {array.shape}")


def _numbers(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _seconds(answers: list[tuple[Mapping[str, float], str]]) -> NDArray[np.float64]:
    return np.array([seconds.get(method, np.nan) for seconds, method in answers], dtype=np.float64)


def rounds_requests(columns: RoundsColumns) -> Iterator[RoundsRequest]:
    """The requests of validated columns; the arrays of rounds are views, nothing is copied."""
    rounds = list(_rounds(columns))
    places = zip(*(spans(getattr(columns, count)) for count in LISTS), strict=True)
    for row, (prompt, output, methods, drafters) in enumerate(places):
        names = columns.methods[methods]
        yield RoundsRequest(
            request_id=columns.request_id[row],
            tag=columns.tag[row],
            session=columns.session[row],
            prompt_tokens=int(columns.prompt_tokens[row]),
            num_tokens=dict(zip(names, columns.num_tokens[methods].tolist(), strict=True)),
            rounds=dict(zip(columns.drafters[drafters], rounds[drafters], strict=True)),
            wall_s=_known(names, columns.wall_s[methods]),
            prefill_s=_known(names, columns.prefill_s[methods]),
            prompt=tuple(columns.prompt[prompt].tolist()),
            output=tuple(columns.output[output].tolist()),
        )


def _rounds(columns: RoundsColumns) -> Iterator[Rounds]:
    """The rounds of every segment; a field unknown in all of them is None."""
    fields = {name: values for name in KINDS if (values := getattr(columns.rounds, name)) is not None}
    num_known = {name: np.append(0, np.cumsum(is_known(fields[name]))) for name in UNKNOWN if name in fields}
    for span in spans(columns.num_rounds):
        silent = {name for name, counts in num_known.items() if counts[span.stop] == counts[span.start]}
        yield Rounds(**{name: values[span] for name, values in fields.items() if name not in silent})


def spans(counts: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of consecutive pieces of these lengths."""
    return (slice(start, end) for start, end in pairwise(accumulate(counts.tolist(), initial=0)))


def _known(names: Sequence[str], seconds: NDArray[np.float64]) -> dict[str, float]:
    pairs = zip(names, seconds.tolist(), strict=True)
    return {name: value for name, value in pairs if value == value}  # NaN differs from itself


def _list_of(kind: pa.DataType, *, nullable: bool = False) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=nullable))


ROUNDS_REQUEST_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int32(), nullable=False),
        pa.field("prompt", _list_of(pa.int32()), nullable=False),
        pa.field("output", _list_of(pa.int32()), nullable=False),
        pa.field("methods", _list_of(pa.string()), nullable=False),
        pa.field("num_tokens", _list_of(pa.int32()), nullable=False),
        pa.field("wall_s", _list_of(pa.float64(), nullable=True), nullable=False),
        pa.field("prefill_s", _list_of(pa.float64(), nullable=True), nullable=False),
        pa.field("drafters", _list_of(pa.string()), nullable=False),
        pa.field("num_rounds", _list_of(pa.int32()), nullable=False),
        pa.field("session", pa.string(), nullable=False),
    ]
)
ROUNDS_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(kind), nullable=kind is np.float64) for name, kind in KINDS.items()]
)


def parquet_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of row groups; the same tables give the same bytes."""
    return pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, store_schema=False)


def request_table(columns: RoundsColumns) -> pa.Table:
    """The table of validated requests."""
    counts = {name: getattr(columns, count) for count, names in LISTS.items() for name in names}
    arrays = [pa.array(columns.request_id, type=pa.string())]
    for field in list(ROUNDS_REQUEST_SCHEMA)[1:]:
        values = getattr(columns, field.name)
        count = counts.get(field.name)
        arrays.append(pa.array(values, type=field.type) if count is None else _lists(values, count, field.type))
    return pa.table(arrays, schema=ROUNDS_REQUEST_SCHEMA)


def rounds_table(rounds: Rounds) -> pa.Table:
    """The table of validated rounds; seconds that are unknown are null."""
    arrays = [pa.array(rounds.filled(name), from_pandas=True) for name in ROUNDS_SCHEMA.names]
    return pa.table(arrays, schema=ROUNDS_SCHEMA)


def request_arrays(table: pa.Table) -> dict[str, Any]:
    """All fields of `RoundsColumns` except the rounds', from a table of the right schema, not validated yet.

    The counts of `num_tokens`, `wall_s`, `prefill_s` and `num_rounds` must be those of `methods` and `drafters`;
    `misaligned` checks it.
    """
    found: dict[str, Any] = {
        "request_id": table.column("id").to_pylist(),
        "tag": table.column("tag").to_pylist(),
        "session": table.column("session").to_pylist() if "session" in table.column_names else [""] * len(table),
        "prompt_tokens": table.column("prompt_tokens").to_numpy().astype(np.int64),
    }
    for count, names in LISTS.items():
        found[count] = _lengths(table, names[0])
        for name in names:
            values = table.column(name).combine_chunks().flatten()
            if pa.types.is_string(values.type):
                found[name] = values.to_pylist()
            else:
                whole = pa.types.is_integer(values.type)
                found[name] = values.cast(pa.int64() if whole else values.type).to_numpy(zero_copy_only=False)
    return found


def misaligned(table: pa.Table) -> tuple[str, str, int] | None:
    """The first list column, its partner and the row where the two differ in length; None if none does."""
    for partner, *others in LISTS.values():
        for name in others:
            differ = _lengths(table, name) != _lengths(table, partner)
            if differ.any():
                return name, partner, int(np.argmax(differ))
    return None


def _lengths(table: pa.Table, name: str) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = table.column(name).combine_chunks().value_lengths().to_numpy().astype(np.int64)
    return lengths


def _lists(values: Sequence[str] | NDArray[Any], counts: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Consecutive pieces of these lengths as lists; NaN becomes null where lists may hold nulls."""
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    element = kind.value_field
    flat = pa.array(values, type=element.type, from_pandas=element.nullable)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, type=kind)
