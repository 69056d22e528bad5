"""Listen at an address and run an ASGI application there until SIGTERM or Ctrl-C: no torch, and no model.

Also checks that any application needs: the client's key, limits on what it sends, and on how slow it may be.
"""

import asyncio
import hmac
import ipaddress
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..base.errors import ArgumentError
from ..base.terminal import tell
from .options import Address
from .protocol import RequestError

if sys.platform != "win32":
    import resource

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Value = TypeVar("Value")

MOST_HEAD_BYTES = 16 * 1024
_SWITCH_S = 0.0005  # most that a thread which reads answers may delay the event loop; Python's default is 5 ms


def bearer_of(key: str | None) -> bytes | None:
    """What the header Authorization must hold; None without a key."""
    return None if key is None else f"Bearer {key}".encode()


def check_head(scope: Scope, wanted: bytes | None, most_bytes: int) -> None:
    """Raises RequestError for a request without the key that is `wanted`, or whose body will be too long."""
    headers = dict(scope["headers"])
    if wanted is not None and not hmac.compare_digest(headers.get(b"authorization", b""), wanted):
        raise RequestError(401, "the key in Authorization is wrong or missing", code="invalid_api_key")
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > most_bytes:
        raise _too_long(most_bytes)


def bounded(receive: Receive, most_bytes: int) -> Receive:
    """As `receive`; raises RequestError once the body is too long."""
    num_bytes = 0

    async def received() -> MutableMapping[str, Any]:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > most_bytes:
            raise _too_long(most_bytes)
        return message

    return received


class LeftError(RequestError):
    """The client has left."""

    def __init__(self) -> None:
        super().__init__(499, "the client has left")


async def unless_left(receive: Receive, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of `work`; if the client leaves first, which reading its request shows, the work is cancelled.

    Raises:
        LeftError: the client left.
    """

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leaves())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()  # or what reading the request raised
            raise LeftError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _too_long(most_bytes: int) -> RequestError:
    return RequestError(413, f"the body must be at most {most_bytes:,} bytes", code="body_too_long")


class Connection(H11Protocol):
    """uvicorn's connection with two changes, for clients that send no proper request or are too slow.

    What is no HTTP gets OpenAI's shape of errors, and no wait is longer than `timeout_keep_alive` of the configuration:
    neither for the rest of a request, nor for a client that does not read its answer.
    """

    _too_slow: asyncio.TimerHandle | None = None
    _reads_slowly = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected: start to wait for its first request."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        super().connection_lost(exc)
        self._reads_slowly = False
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        """A piece of a request came; the wait continues until all of it is there."""
        super().data_received(data)
        self._look()

    def pause_writing(self) -> None:
        """The client does not read as fast as the answer comes."""
        super().pause_writing()
        self._reads_slowly = True
        self._look()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._reads_slowly = False
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer data that is no HTTP request."""
        if len(self.conn.trailing_data[0]) > MOST_HEAD_BYTES:
            self._refuse(RequestError(431, f"the head of a request must be at most {MOST_HEAD_BYTES:,} bytes"))
        else:
            self._refuse(RequestError(400, "what was sent must be a request of HTTP/1.1"))

    @property
    def _is_reading(self) -> bool:
        """Whether the client has to send more before it can be answered."""
        cycle = self.cycle
        if cycle is None or cycle.more_body:
            return True
        return bool(cycle.response_complete and self.conn.trailing_data[0])

    def _look(self) -> None:
        """Start or end the wait for the client."""
        if self.transport.is_closing() or not (self._reads_slowly or self._is_reading):
            self._wait_no_more()
        elif self._too_slow is None:
            self._too_slow = self.loop.call_later(self.timeout_keep_alive, self._leave)

    def _wait_no_more(self) -> None:
        if self._too_slow is not None:
            self._too_slow.cancel()
            self._too_slow = None

    def _leave(self) -> None:
        self._too_slow = None
        if self._reads_slowly:
            self.transport.abort()  # an orderly close would wait for the client
        elif self._is_reading:
            self._refuse(RequestError(408, f"the request must come within {self.timeout_keep_alive:g} s"))

    def _refuse(self, error: RequestError) -> None:
        """Send the error, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            told, reason = error.response, HTTPStatus(error.status_code).phrase.encode()
            headers = [*told.raw_headers, (b"connection", b"close")]
            head = h11.Response(status_code=error.status_code, headers=headers, reason=reason)
            for event in (head, h11.Data(data=bytes(told.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


def bound_socket(address: Address) -> socket.socket:
    """A socket that listens there; raises ArgumentError for an address that is taken, or public without a key."""
    host, port = address.host, address.port
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ArgumentError(f"`host` must be an address of this machine, got {host!r} ({error})") from None
    if not ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback and address.api_key is None:
        raise ArgumentError(f"`host` {host} can be reached from elsewhere: give `api_key_env`, or serve 127.0.0.1")
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise ArgumentError(f"`port` {port} of {host} cannot be listened at: {error.strerror}") from None
    return listening


def run_app(app: object, listening: socket.socket, address: Address, what: str, *, passes_on: bool = False) -> None:
    """Serve `what` there until SIGTERM or Ctrl-C, and then what is under way, for `drain_s` seconds at most.

    `passes_on` says that answers are another server's: their headers are not changed, and one that breaks off is cut
    off here too.
    """
    if passes_on:
        sys.setswitchinterval(_SWITCH_S)
    server = uvicorn.Server(server_config(app, address.drain_s, passes_on=passes_on))
    host = f"[{address.host}]" if ":" in address.host else address.host
    tell(f"{what} at http://{host}:{listening.getsockname()[1]}")
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has ended in order, and passes the signal on
        tell("ended")


def server_config(app: object, drain_s: float, *, passes_on: bool = False, patience_s: int = 15) -> uvicorn.Config:
    """How uvicorn serves an application: nothing is logged but its errors.

    Running answers have `drain_s` >= 0 seconds once the server is to end; a client has `patience_s` > 0 for its next
    request, for the rest of one, and to read on. `passes_on` is as of `run_app`.
    """
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="critical" if passes_on else "error",
        access_log=False,
        lifespan="on",
        loop="asyncio",
        http="h11" if passes_on else Connection,
        ws="none",
        timeout_graceful_shutdown=drain_s,  # type: ignore[arg-type]  # a fraction, too
        timeout_keep_alive=patience_s,
        h11_max_incomplete_event_size=None if passes_on else MOST_HEAD_BYTES,
        server_header=False,
        date_header=not passes_on,
    )


def allow_many() -> None:
    """Let this process hold as many connections as the system allows; many systems allow 1,024 by default."""
    if sys.platform == "win32":
        return  # which has no such limit
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS reports no limit and rejects setting none: then the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
