"""Server-sent events, as completions are streamed: bytes as they come, data as it was sent.

The part of the format that such servers use (https://html.spec.whatwg.org/multipage/server-sent-events.html): lines of
`data:`, an empty line after each event; comments and other fields are passed over.
"""

from collections.abc import Iterator

_MOST_BYTES = 2**24  # of one event


class BrokenStreamError(ValueError):
    """A stream that is none of server-sent events; the message says what was found."""


class EventStream:
    """Turns pieces of a stream into the data of its events. Final."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """Take the next bytes, which may end anywhere; the data of each event that is whole now, to be read to the end.

        Raises:
            BrokenStreamError: bytes that are no UTF-8, a line that is no field, or an event without an end.
        """
        lines = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _MOST_BYTES:
            raise BrokenStreamError(f"an event is longer than {_MOST_BYTES:,} bytes")
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                data, self._data = "\n".join(self._data), []
                yield data

    def _take(self, line: bytes) -> None:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            raise BrokenStreamError(f"a line is no UTF-8: {line[:60]!r}") from None
        field, colon, value = text.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        elif field not in {"", "event", "id", "retry"} or not colon:
            raise BrokenStreamError(f"a line is no field of an event stream: {text[:60]!r}")
