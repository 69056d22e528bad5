"""Server-sent events, as completions are streamed: bytes as they come, the data of each event as it was sent.

The format is that of https://html.spec.whatwg.org/multipage/server-sent-events.html: lines end with LF, CR or both; a
byte order mark at the beginning is none of the text; `data` lines up to an empty line are one event, joined by LF;
comments, other fields and unknown ones say nothing; bytes that are no UTF-8 become U+FFFD. An event without data is
none.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .lines import BYTE_ORDER_MARK

_LINE_ENDS = b"\r\n"
_SILENT = frozenset({b"", b"id", b"retry"})
_MOST_KIND = 100  # bytes


class BrokenStreamError(ValueError):
    """A stream that is none of server-sent events; the message says what was found."""


class Event(NamedTuple):
    """One event.

    Attributes:
        data: its lines of data.
        number: of the last of them in the stream, from 1.
        kind: what its field `event` says; "" without one.
    """

    data: str
    number: int
    kind: str = ""


class EventStream:
    """Turns pieces of a stream into its events. Final.

    Args:
        most_bytes: of one event, and of any one line.
        unknown: is handed the number and the text of each line whose field has an unknown name.
        alone: whether one line of data is an event by itself if another follows without an empty line between: some
            save streams without them. None: it never is, as the format says.
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
        """Take the next bytes, which may end anywhere; each event that is whole now, to be read to the end.

        Raises:
            BrokenStreamError: an event, or a line, of more bytes than it may have.
        """
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
        """The event that the stream breaks off in, which a browser would throw away; it ends the stream."""
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
        elif field not in _SILENT and self._unknown is not None:
            self._unknown(self._number, line)

    def _event(self) -> Iterator[Event]:
        data, self._data, self._data_size = b"\n".join(self._data), [], 0
        kind, self._kind = self._kind, ""
        if data.strip():
            yield Event(data.decode("utf-8", errors="replace"), self._data_number, kind)
