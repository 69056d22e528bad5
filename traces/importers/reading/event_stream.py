"""Streamed responses as they came over the wire (server-sent events): the chunks of each, as one object.

A chunk is a line `data: {...}`; `data: [DONE]` ends a response, and so does a chunk with another `id` or one after a
chunk that says `"stop": true` (llama.cpp, which sends no [DONE]). The last value of a field that is not empty is that
of the response: what engines count comes with the last chunk. Other fields of events (`event:`, `id:`, `retry:` and
comments) say nothing of it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ....strict_json import decode_json, kind_of_json
from ...errors import TraceFormatError
from .fields import Fields

Refuse = Callable[[TraceFormatError], None]

_OTHER_FIELDS = (b"event:", b"id:", b"retry:", b":")
_DATA, _DONE = b"data:", b"[DONE]"


def begins_stream(line: bytes) -> bool:
    """Whether a line is one of an event stream."""
    return line.startswith((_DATA, *_OTHER_FIELDS))


def read_stream(path: object, lines: Iterator[tuple[int, bytes]], bad: Refuse) -> Iterator[Fields]:
    """One object per streamed response; `bad` is handed what is no chunk, and raises or lets it be skipped."""
    response: dict[str, Any] = {}
    place = ""
    for number, line in lines:
        here = f"{path}: line {number}"
        text = line.removeprefix(_DATA).strip()
        if line.startswith(_DATA) and text != _DONE:
            chunk = _chunk(here, text, bad)
            if response and chunk and _is_another(response, chunk):
                yield Fields(place, response)
                response = {}
            _take(response, chunk)
            place = here
        elif text == _DONE and response:
            yield Fields(place, response)
            response = {}
        elif not line.startswith((_DATA, *_OTHER_FIELDS)):
            shown = line[:60].decode("utf-8", errors="replace").strip()
            bad(TraceFormatError(here, "event", "must be a line of an event stream (data: ...)", shown))
    if response:
        yield Fields(place, response)


def _chunk(place: str, text: bytes, bad: Refuse) -> dict[str, Any]:
    """The object of a chunk, empty if it is none and may be skipped."""
    try:
        found = decode_json(text)
        if isinstance(found, dict):
            return found
        told = kind_of_json(found)
    except ValueError as error:
        told = str(error)
    bad(TraceFormatError(place, "JSON", "must be one JSON object after data:", told))
    return {}


def _is_another(response: dict[str, Any], chunk: dict[str, Any]) -> bool:
    return response.get("stop") is True or ("id" in response and "id" in chunk and response["id"] != chunk["id"])


def _take(response: dict[str, Any], chunk: dict[str, Any]) -> None:
    for key, value in chunk.items():
        if key not in response or value not in (None, [], {}):
            response[key] = value
