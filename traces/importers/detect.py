"""Tell the format of files by the keys of their first objects or by their lines, or say which one is nearest."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ..errors import TraceFormatError
from .format import Format
from .formats import FORMATS
from .reading.fields import Fields
from .reading.lines import refuse_pipe, text_lines
from .reading.objects import peek_objects
from .refusals import keys_of, unlike, unreadable
from .vllm_responses import is_plain

_MOST_PLAIN = 100_000  # rows of the target alone before one that tells a format


def detect(files: Sequence[Path]) -> Format:
    """The one format all files have, or those that go with them.

    Raises:
        TraceFormatError: a file cannot be read, has no known format, or another than the first one.
    """
    seen: dict[Path, Format] = {}
    objects: dict[Path, Fields] = {}
    for path in files:
        told = _telling(path)
        if isinstance(told, Format):
            seen[path] = told
        else:
            objects[path] = told
    pairing = [known for known in FORMATS if any(map(known.sees, objects.values()))]
    for path, first in objects.items():
        if not any(known.sees_beside(first) for known in pairing):
            seen[path] = _format_of(first)
    found = next(iter(seen.values()))
    for path, other in seen.items():
        if other is not found:
            raise TraceFormatError(path, "format", f"must be {found.name} as the files before it", other.name)
    return found


def _telling(path: Path) -> Format | Fields:
    """The first object that tells a format; of text, the format that its lines tell."""
    try:
        found = peek_objects(path)
    except TraceFormatError as error:
        if error.field != "JSON":
            raise
        known = _format_of_lines(path)
        if known is None:
            raise unreadable(path, error) from None
        return known
    first = next(found)
    if not is_plain(first):
        return first
    try:
        return next((other for other in islice(found, _MOST_PLAIN) if not is_plain(other)), first)
    except TraceFormatError:  # whoever reads the file says so, or skips it
        return first


def _format_of_lines(path: Path) -> Format | None:
    refuse_pipe(path)
    return next((known for _, line in text_lines(path) for known in FORMATS if known.sees_line(line)), None)


def _format_of(first: Fields) -> Format:
    fitting = [known for known in FORMATS if known.sees(first)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise unlike(first)
    rule = f"must be named, the file could be {' or '.join(known.name for known in fitting)}"
    raise first.error("format", rule, keys_of(first))
