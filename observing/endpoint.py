"""Where a server answers: its address, its key, and connections that can all be cut at once."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ECONNABORTED
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..arguments import ArgumentError
from ..foreign_text import LONGEST_MESSAGE, message_of, one_line_of
from ..strict_json import decode_json

_MOST_PAGE_BYTES = 2**24  # of an answer that is read whole, its head among them
_MOST_MESSAGE_BYTES = 2**16  # that are read of why a request was refused


class ServerError(ValueError):
    """A server that cannot be reached, or says no; the message is one line."""


class RefusedError(ServerError):
    """A server that was reached and answers with another status than 200."""


class _Received(RawIOBase):
    """What comes from a server for one request, head and framing among it; it ends in time and in bytes.

    Args:
        connected: to the server.
        ends_at_s: of the monotonic clock.
        most_bytes: >= 1.
    """

    def __init__(self, connected: socket.socket, ends_at_s: float, most_bytes: int) -> None:
        self._connected, self._ends_at_s, self._most_bytes = connected, ends_at_s, most_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        """As of whatever is read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - of bytes; its type is private
        """Take what is there, waiting for it; raises TimeoutError and ServerError at the limits."""
        left_s = self._ends_at_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connected.settimeout(left_s)
        count = self._connected.recv_into(buffer)
        self._num_bytes += count
        self.check_length()
        return count

    def check_length(self) -> None:
        """Raises ServerError where more came than may come."""
        if self._num_bytes > self._most_bytes:
            raise ServerError(f"the answer is longer than {self._most_bytes:,} bytes")


class _Connected:
    """A socket as `http.client` uses it, with `_Received` to read from; whoever made it closes it. Final."""

    def __init__(self, connected: socket.socket, received: _Received) -> None:
        self._connected, self._received = connected, received

    def sendall(self, data: bytes) -> None:
        """Send, in the time that connecting may take."""
        self._connected.sendall(data)

    def makefile(self, _: str) -> BufferedReader:
        """To read from."""
        return BufferedReader(self._received, 2**16)

    def close(self) -> None:
        """Nothing: an answer may still be read from it."""


class Endpoint:
    """One server. Threads may share it: each request has a connection of its own. Final.

    Args:
        url: `http://HOST:PORT`, with or without `/v1`.
        api_key: sent as a bearer token; shown nowhere, and taken out of what the server says. None: none is sent.
        timeout_s: that a request may take from its sending to the end of its answer, > 0.

    Attributes:
        url: without `/v1`.

    Raises:
        ArgumentError: an address that is none, or one with a key in it.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.url, self._host, self._port, self._path, self._secure = _parts(url)
        self._key, self._timeout_s = api_key, timeout_s
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        """Whether all connections were cut."""
        return self._is_cut

    def cut(self) -> None:
        """End every connection; whoever reads from one fails at once."""
        with self._lock:
            self._is_cut = True
            for connected in self._open:
                try:
                    connected.shutdown(socket.SHUT_RDWR)
                except OSError:  # it has ended by itself
                    continue

    @contextmanager
    def asked(
        self, path: str, body: Mapping[str, Any] | None = None, *, most_bytes: int = _MOST_PAGE_BYTES
    ) -> Iterator[HTTPResponse]:
        """The answer to a request, to be read while the block runs.

        Args:
            path: below the server's address, as in `/v1/models`.
            body: JSON to post; None: get.
            most_bytes: of the answer, its head among them.

        Raises:
            RefusedError: a status that is not 200, with the server's message.
            ServerError: an answer of more bytes, or one that is compressed, which nobody asked for.
            OSError, HTTPException, ValueError: of the connection, and of what is no HTTP.
        """
        ends_at_s = monotonic() + self._timeout_s
        make = HTTPSConnection if self._secure else HTTPConnection
        connection = make(self._host, self._port, timeout=self._timeout_s)
        connection.connect()
        connected = connection.sock
        received = _Received(connected, ends_at_s, most_bytes)
        connection.sock = _Connected(connected, received)
        with self._lock:
            self._open.add(connected)
            is_cut = self._is_cut
        try:
            if is_cut:
                raise ConnectionAbortedError(ECONNABORTED, "connections were cut")
            data = None if body is None else json.dumps(body).encode("utf-8")
            connection.request("GET" if data is None else "POST", f"{self._path}{path}", data, self._headers())
            response = connection.getresponse()
            if response.status != 200:
                raise RefusedError(f"HTTP {response.status}: {self._message(response)}")
            if (coding := response.headers.get("Content-Encoding", "identity")).lower() != "identity":
                raise ServerError(f"the answer is encoded by {one_line_of(coding, 60)}, which was not asked for")
            yield response
        except HTTPException:  # http.client takes any ValueError in a chunk's length for an answer that was cut
            received.check_length()
            raise
        finally:
            with self._lock:
                self._open.discard(connected)
            connection.close()
            connected.close()

    def page(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """All of a short answer as text; raises ServerError, which names its address, also for one that is too long."""
        where = f"{self.url}{path}"
        try:
            with self.asked(path, body) as response:
                return response.read().decode("utf-8", errors="replace")
        except RefusedError as error:
            raise RefusedError(f"{where}: {error}") from None
        except ServerError as error:
            raise ServerError(f"{where}: {error}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise ServerError(f"{where}: cannot be reached: {self.reason(error)}") from None

    def reason(self, error: Exception) -> str:
        """What went wrong with a connection, in words."""
        if isinstance(error, TimeoutError):
            return f"no end within {self._timeout_s:g} s"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return self.hidden(one_line_of(str(error), LONGEST_MESSAGE) or type(error).__name__)

    def hidden(self, text: str) -> str:
        """A text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json, text/plain"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    def _message(self, response: HTTPResponse) -> str:
        raw = response.read(_MOST_MESSAGE_BYTES)
        try:
            told = message_of(decode_json(raw))
        except ValueError:
            told = one_line_of(raw.decode("utf-8", errors="replace"), LONGEST_MESSAGE)
        to = response.headers.get("Location")
        told = told or one_line_of(response.reason, LONGEST_MESSAGE)
        return self.hidden(told if to is None else f"{told} (it says to ask {one_line_of(to, LONGEST_MESSAGE)})")


def _parts(url: str) -> tuple[str, str, int, str, bool]:
    """(address, host, port, path, whether by TLS)."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(f"URL must be http://HOST:PORT or https://HOST, without a query, got {url!r}")
    if parts.username is not None or parts.password is not None:
        raise ArgumentError("URL must hold no name and no password; give a key by `api_key_env`")
    path = parts.path.rstrip("/").removesuffix("/v1")
    secure = parts.scheme == "https"
    shown = f"{parts.scheme}://{parts.netloc}{path}"
    return shown, parts.hostname, port or (443 if secure else 80), path, secure
