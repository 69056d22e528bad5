"""Listen at an address and run an ASGI application there until it is told to end: no torch, and no model."""

import ipaddress
import socket

import uvicorn

from ..base.errors import ArgumentError
from ..base.terminal import tell
from .connections import MOST_HEAD_BYTES, Connection
from .options import Address


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

    `passes_on` says that answers are another server's: their headers are left alone, and what breaks off breaks off.
    """
    server = uvicorn.Server(server_config(app, address.drain_s, passes_on=passes_on))
    host = f"[{address.host}]" if ":" in address.host else address.host
    tell(f"{what} at http://{host}:{listening.getsockname()[1]}")
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn has ended in order, and passes the signal on
        tell("ended")


def server_config(app: object, drain_s: float, *, passes_on: bool = False, patience_s: int = 15) -> uvicorn.Config:
    """How uvicorn serves an application: nothing is logged but its errors.

    Args:
        app: that answers.
        drain_s: seconds that answers under way have once the server shall end, >= 0.
        passes_on: see `run_app`.
        patience_s: seconds that a client has for its next request, for the rest of one, and to read on, > 0.
    """
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        log_level="critical" if passes_on else "error",
        access_log=False,
        lifespan="on",
        loop="asyncio",
        http="h11" if passes_on else Connection,
        ws="none",
        timeout_graceful_shutdown=int(drain_s),
        timeout_keep_alive=patience_s,
        h11_max_incomplete_event_size=None if passes_on else MOST_HEAD_BYTES,
        server_header=False,
        date_header=not passes_on,
    )
