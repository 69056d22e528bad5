"""How a connection behaves to a client that sends no proper request, or is too slow: uvicorn's, with two changes.

What is no HTTP gets OpenAI's shape of errors, and nobody is waited for without end: neither for the rest of a request,
nor for a client that does not read its answer.
"""

import asyncio
import json
import resource
from contextlib import suppress
from http import HTTPStatus
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .protocol import RequestError

MOST_HEAD_BYTES = 16 * 1024


class Connection(H11Protocol):
    """One client's; waits for it as long as `timeout_keep_alive` of the configuration says."""

    _too_slow: asyncio.TimerHandle | None = None
    _reads_slowly = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came: its first request has to come as well."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        super().connection_lost(exc)
        self._reads_slowly = False
        self._wait_no_more()

    def data_received(self, data: bytes) -> None:
        """A piece of a request came; the time for it goes on until all of it is there."""
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
        """What was sent is no request."""
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
        """Begin or end to wait for the client."""
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
            self.transport.abort()  # to close in order would wait for the client
        elif self._is_reading:
            self._refuse(RequestError(408, f"the request must come within {self.timeout_keep_alive:g} s"))

    def _refuse(self, error: RequestError) -> None:
        """Say what is wrong, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            response = h11.Response(
                status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase.encode()
            )
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()


def allow_many() -> None:
    """Let this process hold as many connections as the system allows; many systems say 1,024 unless asked."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS names no bound and refuses to have none: then its own stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
