"""Files of JSON objects, one per line, over many lines, in an array, or as event streams, and lines of text.

An object keeps its place in the file: each field is read with a rule, and an error names both. Lines and values are
bounded, so that a file of gigabytes without a line break, or one that unpacks to it, takes no memory. A value continues
over lines until its brackets are closed. A line that was cut off also leaves brackets open; it is recognised by the
next line, an object of its own that starts in the first column.

Server-sent events are those of https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end with LF, CR or
both; a byte order mark at the beginning is not part of the text; `data` lines up to an empty line are one event, joined
by LF; comments, other fields and unknown ones are ignored; bytes that are no UTF-8 become U+FFFD. An event without data
is ignored.

The data of an event of a streamed response is a chunk, a JSON object; `[DONE]` ends a response, and so does a chunk
with another `id` or one after a chunk that says `"stop": true` (llama.cpp, which sends no [DONE]). The last value of a
field that is not empty is that of the response: counts come with the last chunk. Choices are kept by their `index`;
answers that a server streams in parallel (SGLang's, by `index` and the `id` of their `meta_info`) are responses of
their own.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from ...base.errors import message_of
from ...base.files import MOST_BYTES, decode_json, kind_of_json
from ..errors import TraceFormatError
from ..meta import LEAST_SECONDS, MOST, MOST_SECONDS

_LONGEST_FIELD = 100
_NOISE = 1e-6  # of single precision
_MOST_DIGITS = 9  # of a bound in a message: more than single precision has
_NOTHING = object()


class Fields:
    """One JSON object.

    Attributes:
        place: file and line, as errors name them.
        values: the object itself.
        prefix: names of the enclosing objects, each with a dot after it.
    """

    __slots__ = ("place", "prefix", "values")

    def __init__(self, place: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.place = place
        self.values = values
        self.prefix = prefix

    def __contains__(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(key) is not None

    def error(self, field: str, rule: str, value: object) -> TraceFormatError:
        """The error for a field that breaks `rule`."""
        if isinstance(value, (dict, list)):
            value = f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
        named = self.prefix + field
        if len(named) > _LONGEST_FIELD:  # keys may have any length
            named = f"{named[:_LONGEST_FIELD]}..."
        return TraceFormatError(self.place, named, rule, value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string, or a whole number as one; `default`, if given, where the field is missing."""
        found = self._value(key, default)
        text = str(found) if _is_whole(found) else found
        if not isinstance(text, str):
            raise self.error(key, "must be text", found)
        return self.sound(key, text)

    def sound(self, field: str, text: str) -> str:
        """The text, if it can be written to a file; raises otherwise."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise self.error(field, "must be whole Unicode, without half of a surrogate pair", text) from None
        return text

    def count(self, key: str, *, least: int, default: int | None = None) -> int:
        """A whole number in [least, 2^31 - 1]."""
        found = self._value(key, default)
        if not _is_whole(found) or not least <= found <= MOST:
            raise self.error(key, f"must be a whole number in [{least}, {MOST}]", found)
        return found

    def known_count(self, key: str, *, least: int) -> int | None:
        """A whole number in [least, 2^31 - 1], None where the field is missing or null."""
        return self.count(key, least=least) if key in self else None

    def rate(self, key: str, *, most: float) -> float:
        """A number in [0, most]."""
        return self._number(key, self._value(key, None), 0, most)

    def rates(self, key: str, *, most: float) -> NDArray[np.float64]:
        """`[N]` numbers in [0, most]."""
        return self._numbers(key, 0, most)

    def counts(self, key: str, *, least: int) -> NDArray[np.int64]:
        """`[N]` whole numbers in [least, 2^31 - 1]."""
        values = self.sequence(key)
        fits = set(map(type, values)) <= {int} and (not values or -MOST <= min(values) <= max(values) <= MOST)
        array = np.array(values, dtype=np.int64) if fits else None
        if array is None or (len(array) and array.min() < least):
            place, wrong = next((i, v) for i, v in enumerate(values) if not _is_whole(v) or not least <= v <= MOST)
            raise self.error(f"{key}[{place}]", f"must be a whole number in [{least}, {MOST}]", wrong)
        return array

    def seconds(self, key: str) -> float:
        """Seconds, 1e-12 to 1e9."""
        return self._number(key, self._value(key, None), LEAST_SECONDS, MOST_SECONDS, of="seconds")

    def all_seconds(self, key: str) -> NDArray[np.float64]:
        """`[N]` seconds, 1e-12 to 1e9."""
        return self._numbers(key, LEAST_SECONDS, MOST_SECONDS, of="seconds")

    def sequence(self, key: str) -> list[Any]:
        """A list."""
        found = self._value(key, None)
        if not isinstance(found, list):
            raise self.error(key, "must be a list", found)
        return found

    def nested(self, key: str) -> "Fields":
        """An object within."""
        found = self._value(key, None)
        if not isinstance(found, dict):
            raise self.error(key, "must be an object", found)
        return Fields(self.place, found, f"{self.prefix}{key}.")

    def each(self, key: str) -> Iterator["Fields"]:
        """The objects of a list."""
        for place, found in enumerate(self.sequence(key)):
            if not isinstance(found, dict):
                raise self.error(f"{key}[{place}]", "must be an object", found)
            yield Fields(self.place, found, f"{self.prefix}{key}[{place}].")

    def by_turn(self, key: str) -> "Fields":
        """A list as an object with its indices as keys, for lists of lists."""
        values = {str(place): found for place, found in enumerate(self.sequence(key))}
        return Fields(self.place, values, f"{self.prefix}{key}.")

    def check_mean(self, key: str, value: float, why: str, *, off: float = 0.0) -> None:
        """Raise TraceFormatError for a number, if present and not null, that no value within `off` rounds to."""
        if key in self:
            told = str(self.rate(key, most=1e9))
            check_agrees(self.place, f"{self.prefix}{key}", told, value - off, value + off, why)

    def check_equal(self, key: str, values: tuple[int, ...], why: str) -> None:
        """Raise TraceFormatError for a count, if present, that is none of `values`, all possible readings."""
        told = self.known_count(key, least=0)
        if told is not None and told not in values:
            raise self.error(key, f"must be {values[0]}, {why}", told)

    def _value(self, key: str, default: object) -> Any:  # noqa: ANN401 - what JSON holds
        found = self.values.get(key, _NOTHING)
        if found is not _NOTHING and found is not None:
            return found
        if default is not None:
            return default
        raise self.error(key, "must be there", "nothing" if found is _NOTHING else None)

    def _numbers(self, key: str, least: float, most: float, of: str = "a number") -> NDArray[np.float64]:
        values = enumerate(self.sequence(key))
        return np.array(
            [self._number(f"{key}[{place}]", found, least, most, of) for place, found in values], np.float64
        )

    def _number(self, field: str, found: object, least: float, most: float, of: str = "a number") -> float:
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not least <= found <= most:
            raise self.error(field, f"must be {of} in [{least:g}, {most:g}]", found)
        return float(found)


def half_of_last_digit(text: str) -> float:
    """How far a number printed like this can be from its true value, by rounding alone."""
    return 0.5 * 10.0 ** int(Decimal(text).as_tuple().exponent)


def check_agrees(place: str, field: str, text: str, least: float, most: float, why: str) -> None:
    """Raise TraceFormatError for a printed number to which no number in [least, most] rounds.

    The digits of `text` give the rounding; `why` says how the bounds follow from other values.
    """
    number = float(text)
    within = half_of_last_digit(text) + _NOISE * max(1.0, abs(number))
    if not least - within <= number <= most + within:
        digits = min(max(len(Decimal(text).as_tuple().digits), 4), _MOST_DIGITS)
        bounds = f"in [{least:.{digits}g}, {most:.{digits}g}]"
        told = f"{(least + most) / 2:.{digits}g}" if most - least < within else bounds
        raise TraceFormatError(place, field, f"must be {told}: {why}", text)


def by_request(
    result: Fields,
    needed: Sequence[str],
    more: Sequence[str] = (),
    *,
    missing: Mapping[str, str] | None = None,
    of: str = "requests",
) -> dict[str, list[Any]]:
    """The lists of a benchmark's result with an entry for each of its requests; `of` names the entries in words.

    Lists `needed` are required, and the first gives the number of requests; lists `more` are optional. `missing` has by
    key the rule for one that is missing; None: that it must be there.
    """
    lists: dict[str, list[Any]] = {}
    for key in (*needed, *(key for key in more if key in result)):
        if missing is not None and key not in result:
            raise result.error(key, missing[key], "nothing")
        lists[key] = result.sequence(key)
        if len(lists[key]) != (count := len(lists[needed[0]])):
            raise result.error(key, f"must hold one entry for each of the {count} {of}", len(lists[key]))
    return lists


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1.

    Raises:
        TraceFormatError: a file that cannot be read, or a line of more than 128 MiB.
    """
    return sound_lines(enumerate(raw_lines(path), start=1))


def sound_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not blank, the first one without a byte order mark."""
    for number, line in lines:
        text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if text.strip():
            yield number, text


def raw_lines(path: Path) -> Iterator[bytes]:
    """All lines with their ends; raises as `lines_of`."""
    try:
        yield from bounded_lines(path)
    except (OSError, EOFError, zlib.error) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise TraceFormatError(path, "file", "must be a readable file", told) from None


def bounded_lines(path: Path) -> Iterator[bytes]:
    """The same; raises errors of opening, reading and unpacking a file, and TraceFormatError for a line too long."""
    number = 0
    for file in files_of(path):
        with opened(file) as stream:
            for line in iter(partial(stream.readline, MOST_BYTES + 1), b""):
                number += 1
                if len(line) > MOST_BYTES:
                    raise too_long(f"{path}: line {number}", "line")
                yield line


def too_long(place: Path | str, what: str) -> TraceFormatError:
    """The error for a line, or a value over many lines, that is too long."""
    return TraceFormatError(place, what, f"must have at most {MOST_BYTES:,} bytes", "more")


def refuse_pipe(path: Path) -> None:
    """Raise TraceFormatError for what can be read only once, since detection reads a file in advance."""
    if path.is_fifo():
        raise TraceFormatError(path, "file", "must not be a pipe, to be read twice", "a pipe")


def files_of(path: Path) -> list[Path]:
    """The file itself; of a folder its `.jsonl` files, by name."""
    return (sorted(path.glob("*.jsonl")) if path.is_dir() else []) or [path]


def opened(path: Path) -> BinaryIO:
    """A file to be read, unpacked if its name ends in .gz; raises OSError."""
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines as `lines_of` gives them, as text; bytes that are no UTF-8 become question marks."""
    return ((number, line.decode("utf-8", errors="replace")) for number, line in lines_of(path))


def placed_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The same with their places; where most lines are not needed, `text_lines` is faster."""
    return ((f"{path}: line {number}", line) for number, line in text_lines(path))


_LINE_ENDS = b"\r\n"
_SILENT_FIELDS = frozenset({b"", b"id", b"retry"})
_MOST_KIND = 100  # bytes


class BrokenStreamError(ValueError):
    """Not a stream of server-sent events; the message says what was found."""


class Event(NamedTuple):
    """One event."""

    data: str  # its lines of data
    number: int  # of its last line in the stream, from 1
    kind: str = ""  # its field `event`; "" without one


class EventStream:
    """Turns pieces of a stream into its events.

    No event and no line has more than `most_bytes`. `unknown` gets the number and the text of each line whose field has
    an unknown name. `alone` returns whether one line of data is an event by itself if another follows without an empty
    line between: some programs save streams without them.
    """

    def __init__(
        self,
        *,
        most_bytes: int,
        unknown: Callable[[int, bytes], None] | None = None,
        alone: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._most_bytes, self._unknown, self._alone = most_bytes, unknown, alone
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._line_size = self._data_size = 0
        self._number = self._data_number = 0
        self._kind = ""
        self._ended_by_cr = False

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Take the next bytes, which may end anywhere; yields each event that is complete. Raises BrokenStreamError."""
        if not piece:
            return
        if self._ended_by_cr:
            piece = piece.removeprefix(b"\n")
        self._ended_by_cr = piece.endswith(b"\r")
        for part in piece.splitlines(keepends=True):  # of bytes: at LF, CR and CR LF, and nowhere else
            self._line.append(part)
            self._line_size += len(part)
            if self._line_size + self._data_size > self._most_bytes:
                raise BrokenStreamError(f"an event is longer than {self._most_bytes:,} bytes")
            if part[-1] in _LINE_ENDS:
                yield from self._take(self._whole_line())

    def end(self) -> Iterator[Event]:
        """End the stream; yields an event that was cut off, which a browser would drop."""
        if self._line:
            yield from self._take(self._whole_line())
        yield from self._event()

    def _whole_line(self) -> bytes:
        line = b"".join(self._line).rstrip(_LINE_ENDS)
        self._line.clear()
        self._line_size = 0
        self._number += 1
        return line.removeprefix(BYTE_ORDER_MARK) if self._number == 1 else line

    def _take(self, line: bytes) -> Iterator[Event]:
        field, _, value = line.partition(b":")
        if not line:
            yield from self._event()
        elif field == b"data":
            if self._alone is not None and len(self._data) == 1 and self._alone(self._data[0]):
                yield from self._event()
            self._data.append(value.removeprefix(b" "))
            self._data_size += len(line) + 1
            self._data_number = self._number
        elif field == b"event":
            self._kind = value.strip()[:_MOST_KIND].decode("utf-8", errors="replace")
        elif field not in _SILENT_FIELDS and self._unknown is not None:
            self._unknown(self._number, line)

    def _event(self) -> Iterator[Event]:
        data, self._data, self._data_size = b"\n".join(self._data), [], 0
        kind, self._kind = self._kind, ""
        if data.strip():
            yield Event(data.decode("utf-8", errors="replace"), self._data_number, kind)


_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]')
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")


class JsonText(NamedTuple):
    """The text of one value."""

    number: int  # of its first line, from 1
    text: bytes  # all its lines
    last: bool = False  # whether it is known to be the last of the file


def json_texts(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[JsonText]:
    """The values of numbered lines, sound or not; raises TraceFormatError, with the path, for one of over 128 MiB."""
    before: JsonText | None = None
    for found in _joined(path, lines):
        if before is not None:
            yield before
        before = found
    if before is not None:
        yield before._replace(last=True)


def _joined(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[JsonText]:
    gathered: list[bytes] = []
    first = depth = size = 0
    for number, line in lines:
        if len(gathered) == 1 and gathered[0].startswith(b"{") and _is_object(line):
            yield JsonText(first, gathered[0])
            gathered, depth = [], 0
        if not gathered:
            first, size = number, 0
        gathered.append(line)
        size += len(line)
        if size > MOST_BYTES:
            raise too_long(f"{path}: line {first}", "value")
        text = line.strip()
        # A first line is whole if it ends like an object, or does not begin with a bracket.
        if len(gathered) == 1 and (text[:1] not in _OPENING or (text.startswith(b"{") and text.endswith(b"}"))):
            depth = 0
        else:  # brackets in strings do not count
            tokens = _TOKENS.findall(line)
            depth += sum([token in _OPENING for token in tokens]) - sum([token in _CLOSING for token in tokens])
        if depth <= 0:
            yield JsonText(first, b"".join(gathered))
            gathered, depth = [], 0
    if gathered:
        yield JsonText(first, b"".join(gathered))


def _is_object(text: bytes) -> bool:
    if not text.startswith(b"{"):
        return False
    try:
        return isinstance(decode_json(text, constants=True), dict)
    except ValueError:
        return False


Refuse = Callable[[TraceFormatError], None]

_DATA, _SILENT = b"data:", (b"event:", b"id:", b"retry:", b":")
_MOST_LINES, _MOST_BYTES = 64, 2**20  # in which an event stream is recognised
_DONE = "[DONE]"
_ERROR = "error"
ERROR_RULE, LONGEST_TOLD = "must not be there, the server did not answer to the end: it said this", 120  # characters
_JSON = (b"{", b"[")


def stream_head(lines: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """The first lines of a file, and whether they are an event stream's: known fields, or unknown ones before data."""
    head: list[bytes] = []
    seen = size = 0
    for line in lines:
        size += len(line)
        head.append(line)
        text = line.removeprefix(BYTE_ORDER_MARK) if len(head) == 1 else line
        for part in text[:_MOST_BYTES].splitlines():  # lines may end with CR alone
            if part.startswith(_DATA) or (part.startswith(_SILENT) and not seen):
                return head, True
            if part.lstrip().startswith(_JSON) or seen == _MOST_LINES:
                return head, False
            seen += bool(part.strip())
        if size > _MOST_BYTES:
            break
    return head, False


def read_stream(path: Path, lines: Iterable[bytes], bad: Refuse) -> Iterator[Fields]:
    """One object per streamed response; `bad` gets the error of what is no chunk, and raises, or returns to skip it."""

    def unknown(number: int, line: bytes) -> None:
        """Ignore unknown fields, except JSON without a name, and other spellings of `data`."""
        name, _, text = line.partition(b":")
        name = name.strip()
        if name == _ERROR.encode():  # llama.cpp's, until 2025
            bad(_told_error(f"{path}: line {number}", text.decode("utf-8", errors="replace")))
        if name.startswith(_JSON) or name.lower() == b"data":
            shown = line[:60].decode("utf-8", errors="replace")
            bad(TraceFormatError(f"{path}: line {number}", "event", "must be data: {...}, as events are", shown))

    stream, responses = EventStream(most_bytes=MOST_BYTES, unknown=unknown, alone=_is_whole_chunk), _Responses()
    for event in _events(path, stream, lines):
        place = f"{path}: line {event.number}"
        if event.data.strip() == _DONE:
            yield from responses.end()
        else:
            yield from responses.take(place, _chunk(place, event, bad))
    yield from responses.end()


def _events(path: Path, stream: EventStream, lines: Iterable[bytes]) -> Iterator[Event]:
    try:
        for line in lines:
            yield from stream.feed(line)
        yield from stream.end()
    except BrokenStreamError as error:
        raise TraceFormatError(path, "event", f"must have at most {MOST_BYTES:,} bytes", "more") from error


def _is_whole_chunk(data: bytes) -> bool:
    """Whether a line of data is a chunk, or the end of a response."""
    text = data.strip()
    return text == _DONE.encode() or _is_object(text)


def _told_error(place: str, data: str) -> TraceFormatError:
    """The error for one that the server sent in place of a chunk, with its message."""
    try:
        found: object = decode_json(data.encode("utf-8"), constants=True)
    except ValueError:
        found = data
    return TraceFormatError(place, _ERROR, ERROR_RULE, message_of(found, LONGEST_TOLD))


def _chunk(place: str, event: Event, bad: Refuse) -> dict[str, Any]:
    """The object of an event; empty if it is none, or an error, and is skipped."""
    if event.kind == _ERROR:
        bad(_told_error(place, event.data))
        return {}
    try:
        found = decode_json(event.data.encode("utf-8"), constants=True)
    except ValueError as error:
        found, told = None, str(error)
    else:
        told = kind_of_json(found)
    if isinstance(found, dict):
        if not found.get(_ERROR):
            return found
        bad(_told_error(place, event.data))
        return {}
    bad(TraceFormatError(place, "JSON", "must be one JSON object after data:", told))
    return {}


class _Responses:
    """The unfinished responses of a stream, by `_key`, as several may come in parallel."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[object, object], tuple[str, dict[str, Any]]] = {}
        self._id: object = None

    def take(self, place: str, chunk: dict[str, Any]) -> Iterator[Fields]:
        """Add a chunk; yields the responses that it shows to have ended."""
        if "id" in chunk:
            if self._id is not None and self._id != chunk["id"]:
                yield from self.end()
            self._id = chunk["id"]
        key = _key(chunk)
        _, response = self._under_way.get(key, ("", {}))
        if response.get("stop") is True:
            yield _whole(*self._under_way.pop(key))
            response = {}
        for name, value in chunk.items():
            if name == "choices" and _have_places(value):
                held = response.setdefault(name, {})
                response[name] = held = held if isinstance(held, dict) else {}
                for choice in value:
                    _update(held.setdefault(choice["index"], {}), choice)
            else:
                _update(response, {name: value})
        self._under_way[key] = place, response

    def end(self) -> Iterator[Fields]:
        """Yield all, and begin again."""
        for place, response in self._under_way.values():
            yield _whole(place, response)
        self._under_way.clear()
        self._id = None


def _key(chunk: dict[str, Any]) -> tuple[object, object]:
    """What separates parallel answers; nothing where the response itself has an id, or choices."""
    if "id" in chunk or "choices" in chunk:
        return None, None
    meta = chunk.get("meta_info")
    index, name = chunk.get("index"), meta.get("id") if isinstance(meta, dict) else None
    return index if isinstance(index, int) else None, name if isinstance(name, str) else None


def _have_places(choices: object) -> bool:
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(isinstance(one, dict) and type(one.get("index")) is int for one in choices)
    )


def _update(known: dict[str, Any], more: dict[str, Any]) -> None:
    """Keep the last value of each field that is not empty."""
    known.update((name, value) for name, value in more.items() if name not in known or value not in (None, [], {}))


def _whole(place: str, response: dict[str, Any]) -> Fields:
    choices = response.get("choices")
    if isinstance(choices, dict):
        response["choices"] = [choices[place] for place in sorted(choices)]
    return Fields(place, response)


JSON_BEGINS = re.compile(rb"\{|\[\s*(?:[\[{\"]|$)")  # but not a log's line that begins with a time in brackets
_MOST_TOLD = 8  # lines that an error lists


def refuse(error: TraceFormatError) -> None:
    """The default `bad`: raise."""
    raise error


def read_objects(path: Path, bad: Refuse = refuse) -> Iterator[Fields]:
    """The JSON objects of a file, plain, or gzip by its name; blank lines are ignored.

    `bad` gets the error of what is no JSON object; it raises, or returns to skip it.

    Raises:
        TraceFormatError: the file cannot be read, or holds nothing.
    """
    any_found = False

    def refused(error: TraceFormatError) -> None:
        nonlocal any_found
        bad(error)
        any_found = True

    lines = raw_lines(path)
    head, is_stream = stream_head(lines)
    whole = chain(head, lines)
    if is_stream:
        found = read_stream(path, whole, refused)
    else:
        texts = json_texts(path, sound_lines(enumerate(whole, start=1)))
        found = (one for text in texts for one in _objects(path, text, refused))
    for one in found:
        any_found = True
        yield one
    if not any_found:
        raise _nothing(path)


def the_one(path: Path, results: Iterable[Fields], line: int | None) -> Fields:
    """The one result of a file, or of several the one that begins on a line, from 1; raises TraceFormatError."""
    only: Fields | None = None
    lines: list[str] = []
    for found in results:
        begins = found.place.removeprefix(f"{path}: line ").partition(",")[0]
        lines.append(begins)
        if line is None or begins == str(line):
            if only is not None and line is not None:
                raise TraceFormatError(path, "line", "must hold one result", f"several on line {line}")
            only = found
    if not lines:
        raise TraceFormatError(path, "file", "must hold a result", "nothing")
    told = ", ".join(lines[:_MOST_TOLD]) + (", ..." if len(lines) > _MOST_TOLD else "")
    if only is None:
        raise TraceFormatError(path, "line", f"must be one where a result begins ({told})", line)
    if line is None and len(lines) > 1:
        rule = f"must be stated, the file holds {len(lines)} results: `line` N, one of {told}"
        raise TraceFormatError(path, "line", rule, "nothing")
    return Fields(str(path), only.values)


def peek_objects(path: Path) -> Iterator[Fields]:
    """The objects of a file that will be read again, at least one."""
    refuse_pipe(path)
    found = read_objects(path)
    for first in found:
        return chain([first], found)
    raise _nothing(path)


def first_object(path: Path) -> Fields:
    """The first object of a file that will be read again; raises TraceFormatError as `peek_objects`."""
    return next(peek_objects(path))


def _objects(path: Path, found: JsonText, bad: Refuse) -> Iterator[Fields]:
    place = f"{path}: line {found.number}"
    try:
        value = decode_json(found.text, constants=True)
    except ValueError as error:
        bad(TraceFormatError(place, "JSON", f"must be one JSON object{_hint(found)}", str(error)))
        return
    for entry, one in enumerate(value if isinstance(value, list) else [value]):
        where = f"{place}, entry {entry}" if isinstance(value, list) else place
        if isinstance(one, dict):
            yield Fields(where, one)
        else:
            bad(TraceFormatError(where, "JSON", f"must be one JSON object{_hint(found)}", kind_of_json(one)))


def _hint(found: JsonText) -> str:
    """A guess why a text is no object."""
    if found.last:
        return " (the file's last line: is it cut?)" if b"\n" not in found.text.rstrip() else " (is the file cut?)"
    return ""


def _nothing(path: Path) -> TraceFormatError:
    return TraceFormatError(path, "file", "must hold a JSON object", "nothing")
