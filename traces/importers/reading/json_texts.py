"""Where one JSON value of a file ends and the next begins: on one line, or over many (pretty-printed).

A value on one line is one line. One that leaves brackets open goes on until they are closed. A line that was cut off
leaves brackets open too; it is told by the next line, which is an object of its own and starts where lines start.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ....strict_json import MOST_BYTES, decode_json
from .lines import too_long

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]')
_OPENING, _CLOSING = (b"[", b"{"), (b"]", b"}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonText:
    """The text of one value.

    Attributes:
        number: of its first line, from 1.
        text: all its lines.
        last: whether it is known to be the last of the file.
    """

    number: int
    text: bytes
    last: bool = False


def json_texts(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[JsonText]:
    """The values of numbered lines, sound or not; raises TraceFormatError, with the path, for one of over 128 MiB."""
    before: JsonText | None = None
    for found in _joined(path, lines):
        if before is not None:
            yield before
        before = found
    if before is not None:
        yield replace(before, last=True)


def _joined(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[JsonText]:
    gathered: list[bytes] = []
    first = depth = size = 0
    for number, line in lines:
        if len(gathered) == 1 and gathered[0].startswith(b"{") and _is_object(line):
            yield JsonText(number=first, text=gathered[0])
            gathered, depth = [], 0
        if not gathered:
            first, size = number, 0
        gathered.append(line)
        size += len(line)
        if size > MOST_BYTES:
            raise too_long(f"{path}: line {first}", "value")
        depth = 0 if len(gathered) == 1 and _looks_whole(line) else depth + _opened(line)
        if depth <= 0:
            yield JsonText(number=first, text=b"".join(gathered))
            gathered, depth = [], 0
    if gathered:
        yield JsonText(number=first, text=b"".join(gathered))


def _looks_whole(line: bytes) -> bool:
    """Whether a first line is no beginning: it ends as objects do, or does not begin as values with brackets do."""
    text = line.strip()
    return text[:1] not in _OPENING or (text.startswith(b"{") and text.endswith(b"}"))


def _opened(line: bytes) -> int:
    """Brackets that a line opens, less those that it closes; brackets in texts are none."""
    tokens = _TOKENS.findall(line)
    return sum([token in _OPENING for token in tokens]) - sum([token in _CLOSING for token in tokens])


def _is_object(line: bytes) -> bool:
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(decode_json(line, constants=True), dict)
    except ValueError:
        return False
