"""Read files of JSON objects, with their places: one a line, each over many lines, in an array, or as event streams."""

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeVar

from ....strict_json import decode_json, kind_of_json
from ...errors import TraceFormatError
from .fields import Fields
from .json_texts import JsonText, json_texts
from .lines import raw_lines, refuse_pipe, sound_lines
from .streamed import Refuse, read_stream, stream_head

JSON_BEGINS = re.compile(rb"\{|\[\s*(?:[\[{\"]|$)")  # and not a line of a log that begins with a time in brackets
First = TypeVar("First")
_MOST_TOLD = 8  # lines that an error lists


def refuse(error: TraceFormatError) -> None:
    """What to do with what is no object, unless the user says that it may be skipped."""
    raise error


def read_objects(path: Path, bad: Refuse = refuse) -> Iterator[Fields]:
    """The JSON objects of a file; blank lines are passed over.

    Args:
        path: plain, or gzip by its name.
        bad: is handed what is no JSON object; raises, or returns to have it skipped.

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
    """The one result of a file, or of several the one that is meant.

    Args:
        path: of the file.
        results: that it holds, at least one.
        line: where the one begins that is meant, from 1; None: there is only one.

    Raises:
        TraceFormatError: several results and no line, or none or several on that line.
    """
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
    """The objects of a file that will be read again.

    Raises:
        TraceFormatError: as `read_objects`, and for what can be read only once.
    """
    refuse_pipe(path)
    found = read_objects(path)
    return chain([_first(path, found)], found)


def first_object(path: Path) -> Fields:
    """The first object of a file that will be read again; raises TraceFormatError as `peek_objects`."""
    return next(peek_objects(path))


def _objects(path: Path, found: JsonText, bad: Refuse) -> Iterator[Fields]:
    """The object of a text, or the objects of an array."""
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
    """What may have happened to a text that is no object."""
    if found.last:
        return " (the file's last line: is it cut?)" if b"\n" not in found.text.rstrip() else " (is the file cut?)"
    return ""


def _first(path: Path, found: Iterator[First]) -> First:
    """What comes first of a file; raises TraceFormatError where nothing does."""
    for one in found:
        return one
    raise _nothing(path)


def _nothing(path: Path) -> TraceFormatError:
    return TraceFormatError(path, "file", "must hold a JSON object", "nothing")
