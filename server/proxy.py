"""A proxy before another server: requests and answers pass byte for byte, chunk by chunk, and are recorded.

A bare ASGI application: only h11 is between the server's chunk and ours. `proxy_record.py` reads requests and answers
later. Needs no torch.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing, suppress
from errno import ECONNRESET
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from ..base.errors import ArgumentError, counted, one_line_of
from ..base.terminal import tell
from ..observing.server import Endpoint, model_of
from .listening import (
    LeftError,
    Receive,
    Scope,
    Send,
    bearer_of,
    bound_socket,
    bounded,
    check_head,
    run_app,
    unless_left,
)
from .options import Address, ProxyOptions, RecordingOptions
from .protocol import RequestError
from .proxy_record import Passed, ProxyRecorder

Headers = Sequence[tuple[bytes, bytes]]

# Of one connection, not of what passes through it (RFC 9110, 7.6.1); our client and server write their own.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_OF_REQUESTS = frozenset({b"host", b"content-length", b"expect"})  # the same; uvicorn has answered `expect`
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_CONNECT_S, _ASK_S = 10.0, 5.0
_PIECE = 2**16
_KEEP_S = 1.0  # shorter than any known server keeps an idle connection: none closes as a request is sent on it
_LOOK_S = 0.02  # between measurements of the event loop's lateness


class Proxy:
    """The ASGI application before the server at `endpoint`, which has the server's key.

    Clients must send `api_key`; None: their keys are passed on, for the server to check.
    """

    def __init__(
        self, endpoint: Endpoint, recorder: ProxyRecorder, options: ProxyOptions, *, api_key: str | None = None
    ) -> None:
        self.recorder, self._options = recorder, options
        self._upstream = Upstream(endpoint.url, options.timeout_s)
        self._wanted, self._given = bearer_of(api_key), bearer_of(options.upstream_key)
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        self._num_open += 1
        try:
            body = await self._admitted(scope, receive)
        except RequestError as error:
            self.recorder.leave_out(f"refused by the proxy with status {error.status_code}")
            await error.response(scope, receive, send)
        else:
            try:
                await self._answer(scope, body, receive, send)
            except RequestError as error:
                await error.response(scope, receive, send)
        finally:
            self._num_open -= 1

    async def _live(self, receive: Receive, send: Send) -> None:
        """Watch the event loop from start to end; then write what is left."""
        await receive()
        looking = asyncio.ensure_future(self._look())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        looking.cancel()
        await self._upstream.close()
        await asyncio.to_thread(self.recorder.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _look(self) -> None:
        """Note how late the event loop is: its reads are as late."""
        while True:
            due_ns = time.perf_counter_ns() + int(1e9 * _LOOK_S)
            await asyncio.sleep(_LOOK_S)
            self.recorder.loop_late.note(max(0, time.perf_counter_ns() - due_ns))

    async def _admitted(self, scope: Scope, receive: Receive) -> bytes:
        """The body of an accepted request; raises RequestError for any other."""
        if self._num_open > self._options.max_open:
            message = f"{counted(self._options.max_open, 'request')} are under way already; come again"
            raise RequestError(429, message, code="too_many_requests", retry_after_s=1)
        most_bytes = self._options.max_body_kib * 1024
        check_head(scope, self._wanted, most_bytes)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await _body(bounded(receive, most_bytes))
        except TimeoutError:
            raise RequestError(408, f"the body did not come within {self._options.timeout_s:g} s") from None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back, unless its client leaves."""
        request = self._request(scope, body)
        passed = self.recorder.began(scope["method"], scope["path"], body)
        try:
            await unless_left(receive, self._pass(request, body, passed, send))
        except (LeftError, asyncio.CancelledError) as error:
            if passed is not None:
                passed.left = True
            if not isinstance(error, LeftError):
                raise
        finally:
            if passed is not None:
                self.recorder.ended(passed)

    def _request(self, scope: Scope, body: bytes) -> h11.Request:
        headers = _passed_on(scope["headers"], _OF_REQUESTS)
        if self._wanted is not None:  # the client sent our key, not the server's
            headers = [one for one in headers if one[0].lower() != b"authorization"]
            headers += [] if self._given is None else [(b"authorization", self._given)]
        if body or scope["method"] in _WITH_BODY:
            headers = [*headers, (b"content-length", str(len(body)).encode())]
        target = self._upstream.path + scope["raw_path"]
        target += b"?" + scope["query_string"] if scope["query_string"] else b""
        headers = [(b"host", self._upstream.host), *headers]
        return h11.Request(method=scope["method"], target=target, headers=headers)

    async def _pass(self, request: h11.Request, body: bytes, passed: Passed | None, send: Send) -> None:
        """Pass an answer on; raises RequestError if none came. An answer that breaks off breaks off here too."""
        recorder, has_begun = self.recorder, False
        if passed is not None:
            recorder.sent(passed)
        try:
            async with aclosing(self._upstream.answer(request, body)) as events:
                async for event, came_ns in events:
                    if isinstance(event, h11.Response):
                        has_begun = True
                        headers = _passed_on(event.headers.raw_items())
                        await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
                        if passed is not None:
                            passed.status = event.status_code
                            passed.headers = {
                                name.decode("latin-1"): of.decode("latin-1") for name, of in event.headers
                            }
                        continue
                    piece = bytes(event.data)
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    recorder.came(passed, piece, came_ns)
            await send({"type": "http.response.body", "body": b""})
        except (OSError, h11.ProtocolError) as error:
            failed = _failure(error, self._options.timeout_s)
            if passed is not None:
                passed.failed = failed.detail
            if not has_begun:
                raise failed from None


class Upstream:
    """Connections to the server: one for each request, reused by the next request if that comes at once.

    Args:
        url: `http://HOST:PORT` or `https://HOST`, and a prefix of the paths of requests.
        timeout_s: that the server may be silent.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._at = parts.hostname, parts.port or (80 if self._tls is None else 443)
        self.host, self.path, self._timeout_s = parts.netloc.encode(), parts.path.encode(), timeout_s
        self._idle: list[tuple[float, _Connection]] = []  # since when

    async def answer(
        self, request: h11.Request, body: bytes
    ) -> AsyncGenerator[tuple[h11.Response | h11.Data, int], None]:
        """The head of an answer, then pieces of its body, each with when it was read, by `perf_counter_ns`.

        Raises OSError and h11's RemoteProtocolError, and TimeoutError for a silent server. A reader that stops before
        the end ends the connection.
        """
        connection = await self._connected()
        is_whole, came_ns = False, 0
        try:
            parts = (request, h11.Data(data=body), h11.EndOfMessage())
            # In one write, as a second one fails where the server has closed; its answer may come before it has it all.
            connection.writer.writelines([connection.state.send(part) or b"" for part in parts])
            while not isinstance(event := connection.state.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    data = await self._next_piece(connection)
                    came_ns = time.perf_counter_ns()
                    connection.state.receive_data(data)
                elif isinstance(event, h11.Response | h11.Data):
                    yield event, came_ns
                elif not isinstance(event, h11.InformationalResponse):
                    raise ConnectionResetError(ECONNRESET, "the connection ended before the answer")
            is_sent = not connection.writer.transport.get_write_buffer_size()
            is_whole = is_sent and connection.state.their_state is connection.state.our_state is h11.DONE
        finally:
            if is_whole:
                connection.state.start_next_cycle()
                self._idle.append((time.monotonic(), connection))
            else:
                connection.writer.close()

    async def _next_piece(self, connection: "_Connection") -> bytes:
        """What comes next; raises TimeoutError if nothing came nor went (over TLS what went is not known)."""
        unsent = connection.writer.transport.get_write_buffer_size
        while True:
            left = unsent()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await connection.reader.read(_PIECE)
            except TimeoutError:
                if unsent() >= left:
                    raise

    async def _connected(self) -> "_Connection":
        """A connection that is free, else a new one; those that were idle for long are closed."""
        least_s = time.monotonic() - _KEEP_S
        while self._idle:
            since_s, connection = self._idle.pop()
            if since_s >= least_s and not connection.reader.at_eof():
                return connection
            connection.writer.close()
        try:
            async with asyncio.timeout(min(_CONNECT_S, self._timeout_s)):
                reader, writer = await asyncio.open_connection(*self._at, ssl=self._tls)
        except OSError as error:  # TimeoutError among them
            raise _UnreachableError from error
        return _Connection(reader, writer, h11.Connection(h11.CLIENT))

    async def close(self) -> None:
        """End connections that are idle."""
        for _, connection in self._idle:
            connection.writer.close()
        for _, connection in self._idle:
            with suppress(OSError):
                await connection.writer.wait_closed()


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    state: h11.Connection


class _UnreachableError(OSError):
    pass


def _failure(error: Exception, timeout_s: float) -> RequestError:
    """The error that a client gets when the server did not answer."""
    if isinstance(error, _UnreachableError):
        return RequestError(502, "the server behind this proxy cannot be reached", code="upstream_unreachable")
    if isinstance(error, TimeoutError):
        return RequestError(
            504, f"the server behind this proxy said nothing for {timeout_s:g} s", code="upstream_timeout"
        )
    told = one_line_of(str(error), 200) or type(error).__name__
    return RequestError(502, f"the server behind this proxy broke off: {told}", code="upstream_failed")


def _passed_on(headers: Headers, own: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """Headers without those of the connection, and without `own`."""
    listed = b",".join(value for name, value in headers if name.lower() == b"connection")
    dropped = _HOP_BY_HOP | own | {name.strip().lower() for name in listed.split(b",")}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


async def _body(receive: Receive) -> bytes:
    """All of a request's body; raises RequestError if its client left."""
    parts, more = [], True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise LeftError
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def make_proxy(url: str, options: ProxyOptions, recording: RecordingOptions, *, api_key: str | None = None) -> Proxy:
    """A proxy that records; it asks the server for its models, unless one is named, and for its counters.

    `url` is the server's, `http://HOST:PORT`, with or without `/v1`; `api_key` is what clients must send.

    Raises:
        ArgumentError: a bad address, no folder, a folder that exists, a model that is not listed.
        ServerError: a server that cannot be reached, where it is needed.
    """
    if recording.record is None:
        raise ArgumentError("`record` must name a new folder for what passes, got none")
    endpoint = Endpoint(url, api_key=options.upstream_key, timeout_s=_ASK_S)
    model = options.model or model_of(endpoint, None)
    return Proxy(endpoint, ProxyRecorder(endpoint, model, options, recording), options, api_key=api_key)


def proxy(url: str, options: ProxyOptions, address: Address, recording: RecordingOptions) -> None:
    """Run a proxy until SIGTERM or Ctrl-C; running answers then have `drain_s` seconds to end.

    Raises:
        ValueError: as `make_proxy`, and for an address that is taken or may not be served; one line.
    """
    with closing(bound_socket(address)) as listening:
        made = make_proxy(url, options, recording, api_key=address.api_key)
        run_app(made, listening, address, f"passing on {url}", passes_on=True)
    tell(made.recorder.words())
