"""A format of workloads: how its files are recognised, their reader, and checked rows."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from shlex import quote
from typing import Any

from ...base.errors import repeated
from ...base.files import decode_json, kind_of_json
from ..errors import TraceFormatError
from ..importers.reading import Fields, lines_of
from .arrival import (
    MOST_COUNT,
    MOST_PS,
    MOST_READ_PS,
    PS_PER_S,
    Arrival,
    WorkloadOptions,
    ps_of_decimal,
    ps_of_moment,
)

MOST_ID = 2**62
FIRST_LOCAL = MOST_ID + 1  # first id that no file may use: generated ones are it, the line, then the unit
LOCAL_BITS = 24
_MOST_TEXT = 200
_LONGEST_FIELD = 100


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of an iteration so far."""

    dropped: int = 0  # requests without a token of prompt or output, left out
    served_as_one: int = 0  # such requests, served with one token
    cut_prompts: int = 0  # prompts that were cut
    cut_outputs: int = 0  # outputs that were cut
    cut_waits: int = 0  # waits within sessions that were cut
    # requests of sessions begun before the horizon that would arrive at it or later; those that wait for them never
    # arrive and are not counted
    late_requests: int = 0
    remarks: dict[str, int] = field(default_factory=dict)  # counts of a format's remarks, by text

    def remark(self, text: str) -> None:
        """Count a format's remark."""
        self.remarks[text] = self.remarks.get(text, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One file while it is read."""

    path: Path  # the file
    options: WorkloadOptions  # for requests without tokens
    tally: Tally  # mutated
    number: int = 0  # of the file in the workload, from 0
    # the first object of the workload's first file; empty for tables
    first: Mapping[str, Any] = field(default_factory=dict)

    def place(self, line: int) -> str:
        """The file and line, for errors."""
        return f"{self.path}: line {line}"

    def error(self, line: int, field: str, rule: str, value: object) -> TraceFormatError:
        """The error for a field that breaks `rule`."""
        return TraceFormatError(self.place(line), field, rule, value)

    def lengths(self, line: int, prompt: int, output: int, *, names: Sequence[str]) -> tuple[int, int] | None:
        """(tokens of the prompt, of the output), each >= 1; None for a request that is dropped.

        `line` and `names` are those of the two fields.

        Raises:
            TraceFormatError: one is 0, and the options do not allow that.
        """
        if prompt and output:
            return prompt, output
        if self.options.zero_tokens == "drop":
            self.tally.dropped += 1
            return None
        if self.options.zero_tokens == "one":
            self.tally.served_as_one += 1
            return prompt or 1, output or 1
        rule = "must be >= 1 (with `zero_tokens` such requests are dropped, or served with one token)"
        raise self.error(line, names[bool(prompt)], rule, 0)

    def time(self, line: int, field: str, found: int | None, value: object, *, most_ps: int, instead: str = "") -> int:
        """Check a time or a wait: `found` picoseconds, 0 to `most_ps`; None if `value` is no time.

        `instead` says what to do where it is of a clock.
        """
        if found is None or not 0 <= found <= most_ps:
            raise self.error(line, field, f"must be a time in [0, {most_ps // PS_PER_S:,}] s{instead}", value)
        return found


def whole(value: object, least: int = 0, most: int = MOST_COUNT) -> bool:
    """Whether a decoded value is a whole number in [least, most]."""
    return type(value) is int and least <= value <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFormat:
    """One format of files."""

    name: str  # in `WorkloadAbout.format`
    keys: tuple[str, ...]  # by which its files are recognised, for error messages
    # whether an object with these keys, or a header of these columns, could be of such a file
    sees: Callable[[frozenset[str]], bool]
    # (line, arrival) of each request of a file; raises TraceFormatError
    read: Callable[[Reading], Iterator[tuple[int, Arrival]]]
    # of a file whose first object is given; of a format without blocks 0
    unit_tokens: Callable[[Mapping[str, Any]], int] = lambda _: 0
    notes: tuple[str, ...] = ()  # what readers must know
    # whether a file with this first object has times of arrival; else all begin together
    timed: Callable[[Mapping[str, Any]], bool] = lambda _: True
    many: bool = False  # whether several files are one workload
    is_json: bool = False  # whether its files have one object per line; else they are tables


# Names of the same thing, as `_plain` has them: when a request arrives, and tokens of its prompt and of its answer.
_MEANT = tuple(
    tuple(names.replace("_", "").split())
    for names in (
        "arrives_s arrival_s arrived_at arrival_time start_time start_time_unix_nano request_created_at created "
        "created_at timestamp time ts msec time_iso8601 arrival start",
        "prompt_tokens input_tokens input_toks input_length prompt_len num_prefill_tokens input",
        "output_tokens completion_tokens generated_tokens output_toks output_length output_len num_decode_tokens "
        "output",
    )
)
HOW_TO_NAME = "; or named by `columns` arrives_at=COLUMN,prompt=COLUMN,output=COLUMN"
# What named columns cannot carry.
_MORE = frozenset({"turns", "blocks", "graph", "hash_ids", "input_tok_ids", "sub_requests", "delay"})


def suggested_columns(first: Mapping[str, Any]) -> str:
    """How to name the columns or keys of a log, by its first row, for the end of a rule; empty where unknown.

    The outermost key of a usual name is taken: one further in may be of another thing, as of the user.
    """
    values = dict(_nameable(first))
    found = []
    for meant, is_right in zip(_MEANT, (_time_option, _count, _count), strict=True):
        known = {key: meant.index(last) for key in values if (last := _plain(key)) in meant}
        right = (
            key for key in sorted(known, key=lambda key: (key.count("."), known[key])) if is_right(key, values[key])
        )
        found.append(next(right, None))
    arrives, prompt, output = found
    if arrives is None or prompt is None or output is None or not _MORE.isdisjoint(first):
        return ""
    named = f"{_time_option(arrives, values[arrives])}={arrives},prompt={prompt},output={output}"
    return f"; or `columns` {quote(named)}"


def _nameable(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """What `columns` can name: keys, and with points those of nested objects."""
    for key, value in values.items():
        if "," not in key and key == key.strip():
            yield f"{inside}{key}", value
            if isinstance(value, dict) and "." not in key:
                yield from _nameable(value, f"{inside}{key}.")


def _plain(key: str) -> str:
    """The last part of a key in small letters, without what writers set between words."""
    return "".join(filter(str.isalnum, key.lower().rpartition(".")[2]))


def _count(_: str, value: object) -> bool:
    text = str(value).removesuffix(".0")  # of tables of floats
    return isinstance(value, str | int | Decimal) and text.isascii() and text.isdigit()


def _time_option(key: str, value: object) -> str:
    """What `columns` calls a time of this size; "" for what is no time, or too small to tell its unit.

    Times of a clock are from after 1973. Smaller ones count from a start: Mooncake's are milliseconds.
    """
    if isinstance(value, str) and ps_of_moment(value) is not None:
        return "arrives_at"
    try:
        size = -1.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        size = -1.0
    sizes = {"arrives_ns": 1e17, "arrives_us": 1e14, "arrives_ms": 1e11, "arrives_s": 0 if key.endswith("_s") else 1e8}
    return next((name for name, least in sizes.items() if size >= least), "")


NAME_RULE = f"must be printable text of at most {_MOST_TEXT} characters"


def is_name(value: object) -> bool:
    """Whether a value can be an id or a tag."""
    return isinstance(value, str) and value.isprintable() and len(value) <= _MOST_TEXT


class Row(Fields):
    """The object of a line, or a nested one; numbers with a point are exact decimals."""

    __slots__ = ("line", "reading")

    def __init__(self, reading: Reading, line: int, values: Mapping[str, Any], prefix: str = "") -> None:
        self.place, self.values, self.prefix = f"{reading.path}: line {line}", values, prefix
        self.reading, self.line = reading, line

    def error(self, field: str, rule: str, value: object) -> TraceFormatError:
        return self.reading.error(self.line, f"{self.prefix}{field}"[:_LONGEST_FIELD], rule, _shown(value))

    def check_keys(self, needed: Collection[str], known: Collection[str]) -> None:
        """Raise TraceFormatError for keys that are missing or unknown."""
        for key in self.values:
            if key not in known:
                is_first = self.line == 1 and not self.prefix  # rows after one that fits are not of another log
                told = suggested_columns(self.values) if is_first else ""
                rule = f"must be one of {', '.join(known)}{told}"
                raise self.error(key, rule, "an unknown key")
        for key in needed:
            if self.values.get(key) is None:
                raise self.error(key, "must be there", "null" if key in self.values else "nothing")

    def sequence(self, key: str) -> list[Any]:
        """A list, empty where missing."""
        found = self.values.get(key, [])
        if not isinstance(found, list):
            raise self.error(key, "must be a list", kind_of_json(found))
        return found

    def rows(self, key: str) -> Iterator["Row"]:
        """The objects of a list; raises at once if it is no list, and for another value when it is reached."""
        return (self._row(f"{key}[{place}]", one) for place, one in enumerate(self.sequence(key)))

    def _row(self, field: str, found: object) -> "Row":
        if not isinstance(found, dict):
            raise self.error(field, "must be an object", kind_of_json(found))
        return Row(self.reading, self.line, found, f"{self.prefix}{field}.")

    def tokens(self, key: str) -> int:
        """A whole number; `lengths` treats 0."""
        return self.tokens_of(key, self.values.get(key))

    def tokens_of(self, field: str, value: object) -> int:
        """The same for a value of another place."""
        if not whole(value):
            raise self.error(field, f"must be a whole number in [1, {MOST_COUNT}]", value)
        assert isinstance(value, int)
        return value

    def lengths(self, counts: Sequence[int], fields: Sequence[str]) -> tuple[int, int] | None:
        """See `Reading.lengths`."""
        if counts[0] and counts[1]:
            return counts[0], counts[1]
        return self.reading.lengths(self.line, *counts, names=[f"{self.prefix}{field}" for field in fields])

    def time(self, key: str, *, unit_ps: int = PS_PER_S) -> int:
        """Picoseconds of an arrival in units of time, in [0, 1e9] seconds."""
        return self._time(key, self.values.get(key), unit_ps, MOST_READ_PS)

    def time_of(self, field: str, value: object) -> int:
        """The same, in seconds, for a value of another place."""
        return self._time(field, value, PS_PER_S, MOST_READ_PS)

    def wait(self, key: str, default: int | None = None, *, unit_ps: int = PS_PER_S) -> int:
        """Picoseconds of a time within a session, within the clock of a run."""
        return self._time(key, self.values.get(key, default), unit_ps, MOST_PS)

    def ids(self, key: str) -> tuple[int, ...]:
        """Ids of blocks: whole numbers, not repeated, since an id also means all the text before it."""
        found = self.sequence(key)
        if set(map(type, found)) - {int} or (found and not 0 <= min(found) <= max(found) <= MOST_ID):
            place, wrong = next((place, one) for place, one in enumerate(found) if not whole(one, 0, MOST_ID))
            raise self.error(f"{key}[{place}]", f"must be a whole number in [0, {MOST_ID}]", wrong)
        if twice := repeated(found):
            raise self.error(key, "must not hold an id twice: it stands for all the text before it", twice[0])
        return tuple(found)

    def blocks(self, key: str, prompt: int, unit: int) -> tuple[int, ...]:
        """Ids for all of a prompt, its last unit full or partial, or none."""
        blocks = self.ids(key)
        if blocks and not unit:
            raise self.error(key, "must be left out where the first line has no unit_tokens", len(blocks))
        if blocks and len(blocks) not in (prompt // unit, -(-prompt // unit)):
            rule = f"must be one for each {unit} tokens of prompt_tokens {prompt}, whether the last is full or begun"
            raise self.error(key, rule, len(blocks))
        return blocks

    def name(self, key: str, default: str) -> str:
        """The id of a request."""
        if name := self.printable(key, self.values.get(key, default)):
            return name
        raise self.error(key, "must not be empty", name)

    def printable(self, field: str, value: object) -> str:
        """A printable text without line breaks."""
        if isinstance(value, str) and is_name(value):
            return value
        raise self.error(field, NAME_RULE, value)

    def _time(self, field: str, value: object, unit_ps: int, most_ps: int) -> int:
        found = None
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            found = ps_of_decimal(value, unit_ps=unit_ps)
            if found is not None and 0 <= found <= most_ps:
                return found
        columns = suggested_columns(self.values) if self.line == 1 and not self.prefix else ""
        instead = f" from the start{columns}" if columns else ""
        named = f"{self.prefix}{field}"
        return self.reading.time(self.line, named, found, _shown(value), most_ps=most_ps, instead=instead)


def rows_of(reading: Reading) -> Iterator[Row]:
    """The objects of a file with one per line; raises TraceFormatError for another line."""
    for line, text in lines_of(reading.path):
        yield row_of(reading, line, text)


def row_of(reading: Reading, line: int, text: bytes) -> Row:
    """The object of a line; raises TraceFormatError."""
    rule = "must be one JSON object a line"
    if text.lstrip().startswith(b"["):
        rule += " (`jq -c '.[]' FILE` writes those of a list)"
    try:
        found = decode_json(text, decimals=True, constants=True)
    except ValueError as error:
        raise reading.error(line, "JSON", rule, str(error)) from None
    if not isinstance(found, dict):
        raise reading.error(line, "JSON", rule, kind_of_json(found))
    return Row(reading, line, found)


def _shown(value: object) -> object:
    if isinstance(value, (dict, list)):
        return kind_of_json(value)
    return float(value) if isinstance(value, Decimal) else value
