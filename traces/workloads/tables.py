"""Tables of requests: the CSV files of Azure, vidur, BurstGPT and splitwise-sim, and logs whose columns a caller names.

A caller's log is a table, or one JSON object a line, with rows in any order: engines log a request when it ends.

    arrives_at=startTime,prompt=usage.prompt_tokens,output=usage.completion_tokens

`arrives_at` is a calendar time, `arrives_s`, `arrives_ms`, `arrives_us` and `arrives_ns` are numbers; `id` and `tag`
may be named as well. A key with points is that key, if the object has it; else each part is one of a nested object,
which may be a text that holds it, as the cell of a table. A name with a comma stands in quotes, "prompt=tokens, in".
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import ArgumentError, repeated
from ...base.files import MOST_BYTES, decode_json, kind_of_json
from ..errors import TraceFormatError
from ..importers.reading import lines_of, refuse_pipe
from .arrival import (
    MOST_COUNT,
    MOST_READ_PS,
    PS_PER_S,
    Arrival,
    WorkloadOptions,
    names_zone,
    ps_of_moment,
    ps_of_seconds,
)
from .format import HOW_TO_NAME, NAME_RULE, Reading, Row, Tally, WorkloadFormat, is_name, row_of, rows_of

_MOST_DIGITS, _MOST_LISTED = 10, 200
# No log has times as late as this, the year 5138 of a clock from 1970: their unit is a smaller one.
_LATEST_PS = 10**11 * PS_PER_S
# 11 days to 58 after 1970: a thousand times as long it is 2001 to 2128.
_EARLY_PS = range(10**6 * PS_PER_S, 5 * 10**6 * PS_PER_S)
_LARGER_UNIT = "is the unit right? requests whose times are dates of this century in units of 1,000 {}"
_DAY = "YYYY-MM-DD HH:MM:SS.fraction"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """The columns of a format."""

    arrives: str  # of the time of arrival
    prompt: str  # of the tokens of the prompt
    output: str  # of the tokens of the output
    total: str = ""  # of their sum, which is checked; "" for none
    one: str = ""  # of a number that must be 1; "" for none
    request_id: str = ""  # of the ids of requests; "": lines are
    tag: str = ""  # of `Arrival.tag`; "" for none
    others: tuple[str, ...] = ()  # optional, not used
    ps: Callable[[str], int | None] = ps_of_seconds  # picoseconds of a time; None for a bad one
    times: str = "seconds"  # unit of a time, in words
    # whether times are of a clock, so that the first row is the start; else they count from the start
    clock: bool = False
    # whether rows come in any order; in a log a request that failed has an empty count
    is_log: bool = False
    notes: tuple[str, ...] = ()  # what readers must know

    @property
    def needed(self) -> tuple[str, ...]:
        """Required columns."""
        return self.arrives, self.prompt, self.output

    @property
    def known(self) -> tuple[str, ...]:
        """Allowed columns."""
        return (*self.needed, *filter(None, [self.total, self.one, self.request_id, self.tag]), *self.others)


class _Parsed(NamedTuple):
    """A row."""

    ps: int  # of its time, from the start of the clock
    line: int
    moment: str  # the time as written
    counts: tuple[int, int]  # tokens of prompt and output
    name: str  # the request's id
    tag: str


Rows = Iterator[tuple[int, list[str]]]  # (line, cells), the header first


def read_table(table: TableFormat, reading: Reading, rows: Rows | None = None) -> Iterator[tuple[int, Arrival]]:
    """The requests of a file; times count from the first row where they are of a clock. `rows`: instead of its own."""
    found = _parsed(table, reading, _rows(reading) if rows is None else rows)
    if table.is_log:
        found = _in_order(table, reading, found)
    start: int | None = None
    since = ""
    for ps, line, moment, counts, name, tag in found:
        if start is None:
            start, since = ps if table.clock else 0, f" from line {line}, the earliest" if table.is_log else ""
        tokens = reading.lengths(line, *counts, names=(table.prompt, table.output))
        if tokens is not None:
            if ps < start and table.clock:
                raise reading.error(line, table.arrives, "must not be before the first row's", moment)
            arrives_ps = reading.time(line, table.arrives, ps - start, moment, most_ps=MOST_READ_PS, instead=since)
            yield line, Arrival(name, arrives_ps, *tokens, tag)


def _in_order(table: TableFormat, reading: Reading, rows: Iterator[_Parsed]) -> Iterator[_Parsed]:
    """The rows of a log by time, those of one instant in the order of the file."""
    found = list(rows)
    kept = [row for row in found if all(row.counts) or reading.options.zero_tokens != "drop"]
    lines: dict[str, int] = {}
    for row in found:
        if names_zone(row.moment) != names_zone(found[0].moment):
            rule = f"must name a time zone, or leave it out, as line {found[0].line} does"
            raise reading.error(row.line, table.arrives, rule, row.moment)
    for row in kept:
        if lines.setdefault(row.name, row.line) != row.line:
            rule = f"must be unique in the workload, and is that of line {lines[row.name]} (lines are ids without id=)"
            raise reading.error(row.line, table.request_id, rule, row.name)
    if (same := len(kept) - len({row.ps for row in kept})) > 0:
        reading.tally.remarks["requests that arrive at once with the one before, by the log's times"] = same
    if kept and table.times in _SMALL_UNITS and all(row.ps in _EARLY_PS for row in kept):
        reading.tally.remarks[_LARGER_UNIT.format(table.times)] = len(kept)
    return iter(sorted(found, key=lambda row: row.ps))


def _parsed(table: TableFormat, reading: Reading, rows: Rows) -> Iterator[_Parsed]:
    line, head = next(rows)
    _check_head(table, reading, line, head)
    arrives, prompts, outputs = (head.index(name) for name in table.needed)
    may_lack = (table.total, table.one, table.request_id, table.tag)
    total, one, names, tags = (head.index(name) if name and name in head else None for name in may_lack)
    for line, cells in rows:
        if len(cells) != len(head):
            raise reading.error(line, "row", f"must have {len(head)} cells as the head has", len(cells))
        moment = cells[arrives]
        found = table.ps(moment)
        if found is None:
            raise reading.error(line, table.arrives, f"must be a time, {table.times}", moment or "nothing")
        if table.is_log and found >= _LATEST_PS:
            rule = f"must be a time, {table.times}, below 10^11 s (is its unit smaller?)"
            raise reading.error(line, table.arrives, rule, moment)
        texts = [cells[prompts], cells[outputs]]
        if table.is_log:
            texts = [text.removesuffix(".0") or "0" for text in texts]  # of tables of floats; 1.000 may be a thousand
        prompt, output = (_count(reading, line, *named) for named in zip(table.needed[1:], texts, strict=True))
        if one is not None and cells[one] != "1":
            raise reading.error(line, table.one, "must be 1: a row is one request", cells[one])
        wanted, text = prompt + output, "" if total is None else cells[total]
        if total is not None and text != str(wanted) and _count(reading, line, table.total, text) != wanted:
            rule = f"must be the sum of {table.prompt} and {table.output}, {wanted}"
            raise reading.error(line, table.total, rule, text)
        name = str(line) if names is None else _named(reading, line, table.request_id, cells[names])
        tag = "" if tags is None or not cells[tags] else _named(reading, line, table.tag, cells[tags])
        yield _Parsed(found, line, moment, (prompt, output), name, tag)


def _check_head(table: TableFormat, reading: Reading, line: int, head: list[str]) -> None:
    """Raise TraceFormatError for columns that are missing, unknown or repeated."""
    for twice in repeated([name for name in head if not (table.is_log and name in table.others)]):
        raise reading.error(line, "columns", "must be there once each", twice)
    for name in head:
        if name not in table.known:
            raise reading.error(line, "columns", f"must be of {', '.join(table.known)}{HOW_TO_NAME}", name)
    for name in filter(None, [*table.needed, table.request_id, table.tag]):
        if name not in head:
            raise reading.error(line, "columns", f"must have {name}", ", ".join(head))


def _cells(lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    csv.field_size_limit(MOST_BYTES)  # of the process; the usual 131,072 characters are less than some prompts have
    return csv.reader(lines, strict=True, delimiter=mark, skipinitialspace=True)


def _rows(reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row, the header first."""
    current = 0

    def texts() -> Iterator[str]:
        nonlocal current
        for number, line in lines_of(reading.path):
            current = number
            rule = "must be UTF-8"
            if b"\0" in line:
                raise reading.error(number, "row", f"{rule}, without bytes of 0 (is it UTF-16?)", "a byte of 0")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise reading.error(number, "row", rule, f"byte 0x{line[error.start]:02x}") from None

    try:
        lines = texts()
        head = next(lines)  # `first_row` has read it
        mark = next((one for one in ",;\t" if one in head), ",")  # between cells: a comma, where the head has one
        for cells in _cells(chain([head], lines), mark):
            yield current, cells
    except csv.Error as error:
        raise reading.error(current, "row", "must be cells of a table", str(error)) from None


def _count(reading: Reading, line: int, field: str, text: str) -> int:
    count = _count_of(text)
    if count is None:
        raise reading.error(line, field, f"must be a whole number in [1, {MOST_COUNT}]", text)
    return count


@lru_cache(maxsize=2**12)
def _count_of(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and (count := int(text)) <= MOST_COUNT:
        return count
    return None


def _named(reading: Reading, line: int, field: str, text: str) -> str:
    if not (text and is_name(text)):
        raise reading.error(line, field, NAME_RULE if text else "must not be empty", text)
    return text


def _any_of(needed: Sequence[str], columns: frozenset[str]) -> bool:
    return not columns.isdisjoint(needed)


_TABLES = {
    "azure": TableFormat(
        arrives="TIMESTAMP",
        prompt="ContextTokens",
        output="GeneratedTokens",
        ps=ps_of_moment,
        times="YYYY-MM-DD HH:MM:SS.fraction (UTC)",
        clock=True,
    ),
    "vidur": TableFormat(
        arrives="arrived_at",
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        total="num_total_tokens",
        others=("pd_ratio",),
    ),
    "burstgpt": TableFormat(
        arrives="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        total="Total tokens",
        others=("Session ID", "Elapsed time", "Model", "Log Type"),
        clock=True,
        notes=("Session ID, Elapsed time, Model and Log Type are not used: each request arrives at its own time",),
    ),
    "splitwise": TableFormat(
        arrives="arrival_timestamp",
        prompt="prompt_size",
        output="token_size",
        one="batch_size",
        others=("request_id", "request_type", "application_id"),
        notes=("request_id, request_type and application_id are not used: each request arrives at its own time",),
    ),
}
TABLE_FORMATS = tuple(
    WorkloadFormat(
        name=name,
        keys=table.needed,
        sees=partial(_any_of, table.needed[1:]),
        read=partial(read_table, table),
        notes=table.notes,
    )
    for name, table in _TABLES.items()
)


_CALENDAR = "arrives_at"
_UNITS = {  # picoseconds and words
    "arrives_s": (PS_PER_S, "seconds"),
    "arrives_ms": (10**9, "milliseconds"),
    "arrives_us": (10**6, "microseconds"),
    "arrives_ns": (10**3, "nanoseconds"),
}
_SMALL_UNITS = frozenset(words for ps, words in _UNITS.values() if ps < PS_PER_S)
_TIMES = (_CALENDAR, *_UNITS)
_NAMES = (*_TIMES, "prompt", "output", "id", "tag")


def named_columns(text: str) -> TableFormat:
    """The format of a log by the names of its columns or keys; raises ArgumentError."""
    given: dict[str, str] = {}
    try:
        parts = next(_cells([text], ",")) or [""]
    except csv.Error as error:
        raise ArgumentError(f"`columns` must be cells of a table ({error}), got {text!r}") from None
    for part in parts:
        name, is_given, column = (word.strip() for word in part.partition("="))
        if name not in _NAMES or not (is_given and column):
            rule = f'must be a list of NAME=COLUMN ("NAME=COLUMN" around a comma), NAME one of {", ".join(_NAMES)}'
            raise ArgumentError(f"`columns` {rule}, got {part!r}")
        if name in given:
            raise ArgumentError(f"`columns` must name each once, got {name} twice")
        given[name] = column
    times = [name for name in _TIMES if name in given]
    if len(times) != 1:
        raise ArgumentError(f"`columns` must name one of {', '.join(_TIMES)}, got {', '.join(times) or text!r}")
    for name in ("prompt", "output"):
        if name not in given:
            raise ArgumentError(f"`columns` must name {name} (the column of its tokens), got {text!r}")
    if twice := repeated(list(given.values())):
        raise ArgumentError(f"`columns` must name different columns, got {twice[0]!r} twice")
    unit_ps, unit = _UNITS.get(
        times[0], (0, f"{_DAY}, or T between, and a zone or UTC (a number: arrives_s, _ms, _us, _ns)")
    )
    return TableFormat(
        arrives=given[times[0]],
        prompt=given["prompt"],
        output=given["output"],
        request_id=given.get("id", ""),
        tag=given.get("tag", ""),
        ps=partial(ps_of_seconds, unit_ps=unit_ps) if unit_ps else ps_of_moment,
        times=unit,
        clock=True,
        is_log=True,
    )


def log_of(path: Path, columns: str) -> tuple[WorkloadFormat, Mapping[str, Any]]:
    """(format, first object) of a log by the names of its columns or keys; the object is empty for a table.

    Raises:
        ArgumentError: names that are none.
        TraceFormatError: a file that cannot be read, or a table without these columns.
    """
    table = named_columns(columns)
    begins = first_row(path)
    used = {name for name in table.known if name in begins.values}
    around = {name.partition(".")[0] for name in table.known if name not in used}
    is_nested = begins.is_json or not around.isdisjoint(begins.values)
    left = [name for name in begins.values if name not in {*used, *(around if is_nested else ())}]
    table = replace(table, others=() if is_nested else tuple(left))
    told = ", ".join(filter(None, left))[:_MOST_LISTED]
    found = WorkloadFormat(
        name="columns",
        keys=table.needed,
        sees=lambda _: False,
        read=partial(_read_objects, table, begins) if is_nested else partial(read_table, table),
        notes=(f"columns: {columns}" + (f"; not used: {told}" if told else ""),),
        is_json=begins.is_json,
    )
    return found, begins.values if begins.is_json else {}


def _read_objects(table: TableFormat, begins: "FirstRow", reading: Reading) -> Iterator[tuple[int, Arrival]]:
    rows = rows_of(reading) if begins.is_json else _rows_as_objects(table, reading)
    return read_table(table, reading, _picked(table, reading, begins, rows))


def _rows_as_objects(table: TableFormat, reading: Reading) -> Iterator[Row]:
    """The rows of a table, by their columns."""
    rows = _rows(reading)
    line, head = next(rows)
    parts = {part for name in table.known for part in (name, name.partition(".")[0])}
    for twice in repeated([name for name in head if name in parts]):
        raise reading.error(line, "columns", "must be there once each", twice)
    for line, cells in rows:
        if len(cells) != len(head):
            raise reading.error(line, "row", f"must have {len(head)} cells as the head has", len(cells))
        yield Row(reading, line, dict(zip(head, cells, strict=True)))


def _picked(table: TableFormat, reading: Reading, begins: "FirstRow", rows: Iterator[Row]) -> Rows:
    """The named values of each object, as a table has them; a key that no object has is refused."""
    missing = dict.fromkeys(table.known)
    yield 1, list(missing)
    for row in rows:
        cells = []
        for name in table.known:
            value = _value(row, row.values, name)
            if value is not None:
                missing.pop(name, None)
            cells.append("" if value is None else _text(value))
        yield row.line, cells
    for name in missing:
        raise reading.error(
            1, "columns", f"must be keys of an object ({', '.join(begins.values)[:_MOST_LISTED]})", name
        )


def _value(row: Row, values: Mapping[str, Any], name: str) -> object:
    """What is at a key, or at a key of a nested object or of its text; None if nothing is."""
    if name in values:
        return values[name]
    key, _, rest = name.partition(".")
    inner = values.get(key)
    if rest and isinstance(inner, str) and inner:
        try:
            inner = decode_json(inner.encode(), decimals=True, constants=True)
        except ValueError as error:
            raise row.error(key, f"must hold {rest} as JSON", str(error)) from None
    return _value(row, inner, rest) if rest and isinstance(inner, dict) else None


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return str(value)
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else kind_of_json(value)


class FirstRow(NamedTuple):
    """How a file begins.

    Its first object; of a table its columns, each with its cell in the second line.
    """

    line: int
    values: Mapping[str, Any]
    is_json: bool


def first_row(path: Path) -> FirstRow:
    """How a file begins; raises TraceFormatError for one that cannot be read or read twice, or is empty."""
    refuse_pipe(path)
    reading = Reading(path=path, options=WorkloadOptions(), tally=Tally())
    line, text = next(lines_of(path), (0, b""))
    if not text:
        raise TraceFormatError(path, "file", "must hold a workload", "nothing")
    if text.lstrip()[:1] in (b"{", b"["):
        return FirstRow(line, row_of(reading, line, text).values, is_json=True)
    rows = _rows(reading)
    line, names = next(rows)
    cells: list[str] = []
    with suppress(TraceFormatError):  # of the second row, which is read again
        cells = next(rows, (0, cells))[1]
    return FirstRow(line, dict(zip_longest(names, cells[: len(names)])), is_json=False)
