"""Streamed responses as they came over the wire (server-sent events): the chunks of each, as one object.

The data of an event is a chunk, a JSON object; `[DONE]` ends a response, and so does a chunk with another `id` or one
after a chunk that says `"stop": true` (llama.cpp, which sends no [DONE]). The last value of a field that is not empty
is that of the response: what engines count comes with the last chunk. Choices are kept by their `index`, and answers
that a server streams side by side (SGLang's, by `index` and the `id` of their `meta_info`) are responses of their own.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ....foreign_text import message_of
from ....strict_json import MOST_BYTES, decode_json, kind_of_json
from ...errors import TraceFormatError
from .event_stream import BrokenStreamError, Event, EventStream
from .fields import Fields
from .lines import BYTE_ORDER_MARK

Refuse = Callable[[TraceFormatError], None]

_DATA, _SILENT = b"data:", (b"event:", b"id:", b"retry:", b":")
_MOST_LINES, _MOST_BYTES = 64, 2**20  # that tell an event stream
_DONE = "[DONE]"
_ERROR = "error"
ERROR_RULE, LONGEST_TOLD = "must not be there, the server did not answer to the end: it said this", 120  # characters
_JSON = (b"{", b"[")


def stream_head(lines: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """The first lines of a file, and whether they are an event stream's: known fields, or unknown ones before data.

    Args:
        lines: taken from as far as needed.
    """
    head: list[bytes] = []
    seen = size = 0
    for line in lines:
        size += len(line)
        head.append(line)
        text = line.removeprefix(BYTE_ORDER_MARK) if len(head) == 1 else line
        for part in text[:_MOST_BYTES].splitlines():  # which CR alone may end
            if part.startswith(_DATA) or (part.startswith(_SILENT) and not seen):
                return head, True
            if part.lstrip().startswith(_JSON) or seen == _MOST_LINES:
                return head, False
            seen += bool(part.strip())
        if size > _MOST_BYTES:
            break
    return head, False


def read_stream(path: Path, lines: Iterable[bytes], bad: Refuse) -> Iterator[Fields]:
    """One object per streamed response; `bad` is handed what is no chunk, and raises or lets it be skipped.

    Args:
        path: of the file, for errors.
        lines: with their ends, whatever they are.
        bad: see above.
    """

    def unknown(number: int, line: bytes) -> None:
        """Fields of any name are passed over, but for JSON without one, and for `data` in another spelling."""
        name, _, text = line.partition(b":")
        name = name.strip()
        if name == _ERROR.encode():  # llama.cpp's, until 2025
            bad(_told_error(f"{path}: line {number}", text.decode("utf-8", errors="replace")))
        if name.startswith(_JSON) or name.lower() == b"data":
            shown = line[:60].decode("utf-8", errors="replace")
            bad(TraceFormatError(f"{path}: line {number}", "event", "must be data: {...}, as events are", shown))

    stream, responses = EventStream(most_bytes=MOST_BYTES, unknown=unknown, alone=_is_whole), _Responses()
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


def _is_whole(data: bytes) -> bool:
    """Whether a line of data is a chunk, or the end of a response."""
    text = data.strip()
    if text == _DONE.encode():
        return True
    try:
        return text.startswith(b"{") and isinstance(decode_json(text, constants=True), dict)
    except ValueError:
        return False


def _told_error(place: str, data: str) -> TraceFormatError:
    """What to raise of an error that the server sent in place of a chunk, with its message."""
    try:
        found: object = decode_json(data.encode("utf-8"), constants=True)
    except ValueError:
        found = data
    return TraceFormatError(place, _ERROR, ERROR_RULE, message_of(found, LONGEST_TOLD))


def _chunk(place: str, event: Event, bad: Refuse) -> dict[str, Any]:
    """The object of an event, empty if it is none, or an error, and may be skipped."""
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
    """The responses of a stream that are under way, by what tells those that come side by side apart."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[object, object], tuple[str, dict[str, Any]]] = {}
        self._id: object = None

    def take(self, place: str, chunk: dict[str, Any]) -> Iterator[Fields]:
        """Add a chunk; the responses that it shows to have ended."""
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
                response[name] = _by_place(held if isinstance(held, dict) else {}, value)
            elif name not in response or value not in (None, [], {}):
                response[name] = value
        self._under_way[key] = place, response

    def end(self) -> Iterator[Fields]:
        """All of them; others begin."""
        for place, response in self._under_way.values():
            yield _whole(place, response)
        self._under_way.clear()
        self._id = None


def _key(chunk: dict[str, Any]) -> tuple[object, object]:
    """What tells answers that come side by side; nothing where the response itself has a name, or choices."""
    if "id" in chunk or "choices" in chunk:
        return None, None
    meta = chunk.get("meta_info")
    index, name = chunk.get("index"), meta.get("id") if isinstance(meta, dict) else None
    return index if isinstance(index, int) else None, name if isinstance(name, str) else None


def _have_places(choices: object) -> bool:
    """Whether choices say which they are."""
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(isinstance(one, dict) and type(one.get("index")) is int for one in choices)
    )


def _by_place(held: dict[int, dict[str, Any]], choices: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Choices by their place; the last value of a field that is not empty stays. Changes `held`."""
    for choice in choices:
        known = held.setdefault(choice["index"], {})
        known.update(
            (name, value) for name, value in choice.items() if name not in known or value not in (None, [], {})
        )
    return held


def _whole(place: str, response: dict[str, Any]) -> Fields:
    choices = response.get("choices")
    if isinstance(choices, dict):
        response["choices"] = [choices[place] for place in sorted(choices)]
    return Fields(place, response)
