"""Where a server answers: its address, its key, and connections that can all be cut at once."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ECONNABORTED
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from ..arguments import ArgumentError
from .chunk import message_of

_MOST_BYTES = 2**20  # of a message
_MOST_PAGE_BYTES = 2**24  # of a page that is read whole; metrics of many engines come to some 2**21


class ServerError(ValueError):
    """A server that cannot be reached, or says no; the message is one line."""


class RefusedError(ServerError):
    """A server that was reached and answers with another status than 200."""


class Endpoint:
    """One server. Threads may share it: each request has a connection of its own. Final.

    Args:
        url: `http://HOST:PORT`, with or without `/v1`.
        api_key: sent as a bearer token; shown nowhere, and taken out of what the server says. None: none is sent.
        timeout_s: the longest silence, > 0.

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
    def asked(self, path: str, body: Mapping[str, Any] | None = None) -> Iterator[HTTPResponse]:
        """The answer to a request, to be read while the block runs.

        Args:
            path: below the server's address, as in `/v1/models`.
            body: JSON to post; None: get.

        Raises:
            RefusedError: a status that is not 200, with the server's message.
            OSError, HTTPException: of the connection.
        """
        make = HTTPSConnection if self._secure else HTTPConnection
        connection = make(self._host, self._port, timeout=self._timeout_s)
        connection.connect()
        connected = connection.sock  # which the connection forgets where an answer ends with it
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
            yield response
        finally:
            with self._lock:
                self._open.discard(connected)
            connection.close()

    def page(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """All of a short answer as text; raises ServerError, which names its address, also for one that is too long."""
        where = f"{self.url}{path}"
        try:
            with self.asked(path, body) as response:
                data = response.read(_MOST_PAGE_BYTES + 1)
        except RefusedError as error:
            raise RefusedError(f"{where}: {error}") from None
        except (OSError, HTTPException) as error:
            raise ServerError(f"{where}: cannot be reached: {self.reason(error)}") from None
        if len(data) > _MOST_PAGE_BYTES:  # half of it could say something else
            raise ServerError(f"{where}: must be at most {_MOST_PAGE_BYTES:,} bytes")
        return data.decode("utf-8", errors="replace")

    def reason(self, error: Exception) -> str:
        """What went wrong with a connection, in words."""
        if isinstance(error, TimeoutError):
            return f"no answer for {self._timeout_s:g} s"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return self.hidden(" ".join(str(error).split()) or type(error).__name__)

    def hidden(self, text: str) -> str:
        """A text without the key."""
        return text.replace(self._key, "***") if self._key else text

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json, text/plain"}
        return headers | ({"Authorization": f"Bearer {self._key}"} if self._key else {})

    def _message(self, response: HTTPResponse) -> str:
        text = response.read(_MOST_BYTES).decode("utf-8", errors="replace")
        try:
            told = message_of(json.loads(text))
        except ValueError:
            told = " ".join(text.split())
        return self.hidden(told[:300]) or response.reason


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
