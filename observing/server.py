"""A server, one request and its streamed answer, with the times at which a client saw its parts.

Times are whole picoseconds since the beginning of a run, as all serving logs have them.
"""

import json
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from errno import ECONNABORTED
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..base.errors import LONGEST_MESSAGE, ArgumentError, message_of, one_line_of
from ..base.files import decode_json
from ..runs.observed import ObservedRequest
from ..traces.importers.reading import BrokenStreamError, EventStream
from ..traces.workloads.arrival import MOST_COUNT, Arrival

_LONGEST_REASON = 60  # characters
PAIR = ("drafted", "accepted")  # of no use without each other
# Names of the reasoning in a chat's delta; vLLM streams the same text by both.
_REASONING = ("reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event. None: the server does not say."""

    text: str = ""  # that was added; "" for none
    finish_reason: str | None = None  # once the answer has ended
    prompt_tokens: int | None = None  # of `usage`, tokens
    output_tokens: int | None = None
    # of the prompt, that the server had in its cache, by `usage.prompt_tokens_details`
    cached_tokens: int | None = None
    # drafted tokens of the answer, and accepted ones: llama.cpp's `timings`, vLLM's `metrics.speculative_decoding`
    drafted: int | None = None
    accepted: int | None = None
    error: str = ""  # the server's message, where the event is one; "" for none
    # names of impossible counts, such as negative ones, drafted tokens without accepted ones, or more accepted than
    # drafted; they are None above
    odd: tuple[str, ...] = ()


def chunk_of(data: str) -> Chunk:
    """What the data of an event says; raises BrokenStreamError for no JSON object, or one of several answers."""
    try:
        content = decode_json(data.encode("utf-8"), constants=True)
    except ValueError:
        raise BrokenStreamError(f"an event is no JSON: {data[:60]!r}") from None
    if not isinstance(content, dict):
        raise BrokenStreamError(f"an event is no JSON object: {data[:60]!r}")
    if content.get("error"):
        return Chunk(error=message_of(content))
    choice = _choice(content)
    usage, timings = _object(content, "usage"), _object(content, "timings")
    metrics = _object(_object(content, "metrics"), "speculative_decoding")
    told = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "cached_tokens": _object(usage, "prompt_tokens_details").get("cached_tokens"),
        "drafted": timings.get("draft_n", metrics.get("num_draft_tokens")),
        "accepted": timings.get("draft_n_accepted", metrics.get("num_accepted_draft_tokens")),
    }
    counts: dict[str, Any] = {
        name: value
        for name, value in told.items()
        if type(value) is int and int(name == "prompt_tokens") <= value <= MOST_COUNT
    }
    odd = [name for name, value in told.items() if value is not None and name not in counts]
    drafted, accepted = (counts.get(name) for name in PAIR)
    if (drafted is None) != (accepted is None) or (accepted or 0) > (drafted or 0):
        odd += [name for name in PAIR if counts.pop(name, None) is not None]
    reason = choice.get("finish_reason")
    return Chunk(
        text=_text(choice),
        finish_reason=one_line_of(reason, _LONGEST_REASON) if isinstance(reason, str) and reason else None,
        odd=tuple(odd),
        **counts,
    )


def _choice(content: dict[str, Any]) -> dict[str, Any]:
    choices = content.get("choices")
    found = [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    if len(found) > 1 or any(one.get("index", 0) not in (0, None) for one in found):
        raise BrokenStreamError("an event is of a second choice: one answer was asked for")
    return found[0] if found else {}


def _text(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = {"content": choice.get("text")}
    parts = [delta.get("content"), next((said for name in _REASONING if (said := delta.get(name))), None)]
    return "".join(part for part in parts if isinstance(part, str))


def _object(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


_PS_PER_NS = 1000


class ClientClock:
    """Time since it was made; monotonic. Final."""

    def __init__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def now_ps(self) -> int:
        """Picoseconds since the beginning, >= 0."""
        return self.ps_of(time.perf_counter_ns())

    def ps_of(self, at_ns: int) -> int:
        """Its time at an instant of `time.perf_counter_ns`."""
        return (at_ns - self._began_ns) * _PS_PER_NS


_MOST_PAGE_BYTES = 2**24  # of an answer that is read whole, its head among them
_MOST_MESSAGE_BYTES = 2**16  # read of a rejected request's message


class ServerError(ValueError):
    """A server that cannot be reached, or answers with an error; the message is one line."""


class RefusedError(ServerError):
    """A server that was reached and answers with another status than 200."""


class _Received(RawIOBase):
    """The bytes of one answer, head and framing included, limited in time and in length."""

    def __init__(self, connected: socket.socket, ends_at_s: float, most_bytes: int) -> None:
        self._connected, self._ends_at_s, self._most_bytes = connected, ends_at_s, most_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - of bytes; its type is private
        """Read what has come, waiting for the first byte; raises TimeoutError and ServerError at the limits."""
        left_s = self._ends_at_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connected.settimeout(left_s)
        count = self._connected.recv_into(buffer)
        self._num_bytes += count
        self.check_length()
        return count

    def check_length(self) -> None:
        """Raises ServerError where more came than `most_bytes`."""
        if self._num_bytes > self._most_bytes:
            raise ServerError(f"the answer is longer than {self._most_bytes:,} bytes")


class _Connected:
    """A socket as `http.client` uses it, with `_Received` to read from; its maker closes it. Final."""

    def __init__(self, connected: socket.socket, received: _Received) -> None:
        self._connected, self._received = connected, received

    def sendall(self, data: bytes) -> None:
        """Send, in the time that connecting may take."""
        self._connected.sendall(data)

    def makefile(self, _: str) -> BufferedReader:
        return BufferedReader(self._received, 2**16)

    def close(self) -> None:
        """Nothing: an answer may still be read from it."""


class Endpoint:
    """One server. Threads may share it: each request has a connection of its own. Final.

    Args:
        url: `http://HOST:PORT`, with or without `/v1`; without it as an attribute.
        api_key: sent as a bearer token; shown nowhere, and taken out of what the server says. None: none is sent.
        timeout_s: that a request may take from its sending to the end of its answer, > 0.

    Attributes:
        is_cut: whether all connections were cut.

    Raises:
        ArgumentError: an address that is none, or one with a key in it.
    """

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self.url, self._host, self._port, self._path, self._secure = _parts(url)
        self._key, self._timeout_s = api_key, timeout_s
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        self.is_cut = False

    def cut(self) -> None:
        """End every connection; reading from one fails at once."""
        with self._lock:
            self.is_cut = True
            for connected in self._open:
                try:
                    connected.shutdown(socket.SHUT_RDWR)
                except OSError:  # it has ended by itself
                    continue

    @contextmanager
    def asked(
        self, path: str, body: Mapping[str, Any] | None = None, *, most_bytes: int = _MOST_PAGE_BYTES
    ) -> Iterator[HTTPResponse]:
        """The answer to a request at `path`, as `/v1/models`, to be read within the block; `body` is JSON to post.

        Without a body the request is a get. `most_bytes` bounds the answer, its head included.

        Raises:
            RefusedError: a status that is not 200, with the server's message.
            ServerError: an answer of more bytes, or a compressed one, which was not requested.
            OSError, HTTPException, ValueError: of the connection, or no HTTP.
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
            is_cut = self.is_cut
        try:
            if is_cut:
                raise ConnectionAbortedError(ECONNABORTED, "connections were cut")
            data = None if body is None else json.dumps(body).encode("utf-8")
            headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json, text/plain"}
            headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
            connection.request("GET" if data is None else "POST", f"{self._path}{path}", data, headers)
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
        """All of a short answer as text; raises ServerError, which names its address, also if it is too long."""
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


_PIECE = 2**16
_MOST_EVENT_BYTES = 2**24  # of one event of a stream
_BYTES_A_TOKEN, _BYTES_BESIDE = 2**12, 2**20  # that an answer may have at most: an event for each token has about 300
_MOST_STREAM_BYTES = 2**28
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What is sent for a request of the workload."""

    arrival: Arrival  # the request
    prompt_id: str  # of the prompt
    text: str  # of the prompt
    body: dict[str, Any]  # all that is posted


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request with the text of its answer, which is kept only until its tokens are counted."""

    seen: ObservedRequest  # what the client saw
    prompt: str  # the text that was sent
    body: Mapping[str, Any]  # all that was posted
    answer: str  # the text that came
    done: bool  # whether [DONE] came at its end
    # names of impossible counts, such as negative ones; `seen` has None for them
    odd: frozenset[str] = frozenset()


class _Answer:
    def __init__(self) -> None:
        self.outputs_at_ps: list[int] = []
        self.texts: list[str] = []
        self.ended_at_ps: int | None = None
        self.told: dict[str, int] = {}
        self.odd: set[str] = set()
        self.finish_reason = ""
        self.done = False

    def take(self, chunk: Chunk, at_ps: int) -> None:
        if chunk.text:
            self.outputs_at_ps.append(at_ps)
            self.texts.append(chunk.text)
            if self.ended_at_ps is not None:
                self.ended_at_ps = at_ps
        if chunk.finish_reason is not None:
            self.finish_reason, self.ended_at_ps = chunk.finish_reason, at_ps
        for name in ("prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted"):
            if (count := getattr(chunk, name)) is not None:
                self.told[name] = count
        for name in PAIR if set(PAIR) & set(chunk.odd) else ():
            self.told.pop(name, None)
        self.odd.update(chunk.odd)


# Bytes of an answer, and when they came.
Piece = tuple[bytes, int]


def exchange(endpoint: Endpoint, path: str, sent: Sent, due_at_ps: int, clock: ClientClock) -> Exchange:
    """Send a request and read its answer to the end; what goes wrong is in the record, and nothing is raised.

    A request whose connection was cut by `Endpoint.cut` did not end, and did not fail.
    """
    most_bytes = min(_MOST_STREAM_BYTES, _BYTES_BESIDE + _BYTES_A_TOKEN * sent.arrival.output_tokens)

    def pieces() -> Generator[Piece, None, None]:
        with endpoint.asked(path, sent.body, most_bytes=most_bytes) as response:
            while piece := response.read1(_PIECE):
                yield piece, clock.now_ps()

    sent_at_ps = clock.now_ps()
    with closing(pieces()) as answer:
        found = read_exchange(answer, sent, endpoint, due_at_ps=due_at_ps, sent_at_ps=sent_at_ps, now_ps=clock.now_ps)
    if found.seen.failed and endpoint.is_cut:
        return replace(found, seen=replace(found.seen, ended_at_ps=None, failed=""))
    return found


def read_exchange(
    pieces: Iterable[Piece],
    sent: Sent,
    endpoint: Endpoint,
    *,
    due_at_ps: int,
    sent_at_ps: int,
    now_ps: Callable[[], int],
    whole: bool = False,
) -> Exchange:
    """What a client sees of an answer; what goes wrong is in the record, and nothing is raised.

    Args:
        pieces: of the body, as they come; may raise what `Endpoint.asked` does.
        sent: what was asked.
        endpoint: that was asked.
        due_at_ps: when the request was due, picoseconds as all times.
        sent_at_ps: when it was sent.
        now_ps: the time now, for an answer that failed or has no event at its end.
        whole: whether the body is one answer of JSON, whose tokens have no known times; else an event stream.
    """
    answer, failed = _Answer(), ""
    try:
        if whole:
            _read_whole(pieces, answer, endpoint)
        else:
            _read(pieces, answer, endpoint)
    except (ServerError, BrokenStreamError) as error:
        failed = endpoint.hidden(str(error))
    except (OSError, HTTPException, ValueError) as error:
        failed = endpoint.reason(error)
    if failed and answer.outputs_at_ps:
        failed = f"{failed} (the answer had begun)"
    seen = ObservedRequest(
        request_id=sent.arrival.request_id,
        tag=sent.arrival.tag,
        slo=sent.arrival.slo,
        prompt_id=sent.prompt_id,
        asked_tokens=sent.arrival.output_tokens,
        due_at_ps=min(due_at_ps, sent_at_ps),
        sent_at_ps=sent_at_ps,
        outputs_at_ps=tuple(answer.outputs_at_ps),
        ended_at_ps=now_ps() if failed or answer.ended_at_ps is None else answer.ended_at_ps,
        finish_reason=answer.finish_reason,
        failed=failed,
        **answer.told,
    )
    text, odd = "".join(answer.texts), frozenset(answer.odd)
    return Exchange(seen=seen, prompt=sent.text, body=sent.body, answer=text, done=answer.done, odd=odd)


def _read_whole(pieces: Iterable[Piece], answer: _Answer, endpoint: Endpoint) -> None:
    came = list(pieces)
    at_ps = came[-1][1] if came else 0
    chunk = chunk_of(b"".join(piece for piece, _ in came).decode("utf-8", errors="replace"))
    if chunk.error:
        raise ServerError(f"the server said: {endpoint.hidden(chunk.error)}")
    answer.take(replace(chunk, text=""), at_ps)
    answer.ended_at_ps, answer.done = at_ps, True


def _read(pieces: Iterable[Piece], answer: _Answer, endpoint: Endpoint) -> None:
    unknown: list[str] = []
    for data, at_ps in _events(pieces, unknown):
        if data == _DONE:
            answer.done = True
            return
        chunk = chunk_of(data)
        if chunk.error:
            raise ServerError(f"the server said in its stream: {endpoint.hidden(chunk.error)}")
        answer.take(chunk, at_ps)
    if not answer.finish_reason:
        told = f"; it has {unknown[0]!r}, which is no field of an event stream" if unknown else ""
        raise BrokenStreamError(f"the stream ended without [DONE] and without a finish_reason{told}")


def _events(pieces: Iterable[Piece], unknown: list[str]) -> Iterator[tuple[str, int]]:
    """(data, when it came) of each event; the first line of no known field goes to `unknown`."""

    def note(_: int, line: bytes) -> None:
        if not unknown:
            unknown.append(line[:60].decode("utf-8", errors="replace"))

    stream = EventStream(most_bytes=_MOST_EVENT_BYTES, unknown=note)
    for piece, at_ps in pieces:
        for event in stream.feed(piece):
            yield event.data, at_ps


_LONGEST = 500  # characters of a name
_SHOWN = 20  # models, in an error


def model_of(endpoint: Endpoint, asked: str | None, *, policies: Sequence[str] = ()) -> str:
    """The model's name as requests give it: the one that was asked for, or the only one that the server lists.

    Args:
        endpoint: the server.
        asked: the model the user named; None: the one it lists.
        policies: that requests will name, as only `paceline serve` understands it.

    Raises:
        ServerError: the server cannot be reached, or lists no models though none was named.
        ArgumentError: a model or a policy that it does not list, no model where it lists several, a name that is empty
            or too long.
    """
    try:
        listed = _listed(endpoint)
    except RefusedError:
        if asked is None:
            raise
        listed = {}
    name = _only(endpoint, list(listed), asked)
    if not (0 < len(name) <= _LONGEST and name.isprintable()):  # the run's file could not hold it
        found = one_line_of(repr(name), 100)
        raise ArgumentError(f"`model` must be a name of 1 to {_LONGEST} printable characters, got {found}")
    served = listed.get(name, ())
    if policies and not served:
        raise ArgumentError(f"`policy` goes with paceline serve, {endpoint.url} lists no policies, got {policies[0]}")
    for policy in policies:
        if policy not in served:
            raise ArgumentError(f"`policy` must be one that {endpoint.url} serves ({', '.join(served)}), got {policy}")
    return name


def _only(endpoint: Endpoint, listed: Sequence[str], asked: str | None) -> str:
    shown = ", ".join(listed[:_SHOWN]) or "none"
    shown += f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    if asked is None:
        if len(listed) != 1:
            raise ArgumentError(f"`model` must be given where a server lists several models or none, got {shown}")
        return listed[0]
    if listed and asked not in listed:
        raise ArgumentError(f"`model` must be one that {endpoint.url} lists ({shown}), got {asked!r}")
    return asked


def _listed(endpoint: Endpoint) -> dict[str, Sequence[str]]:
    """Models, and the policies of each; only `paceline serve` lists those."""
    text = endpoint.page("/v1/models")
    try:
        content = decode_json(text.encode("utf-8"))
    except ValueError:
        content = None
    data = content.get("data") if isinstance(content, dict) else None
    if not isinstance(data, list):
        raise ServerError(f"{endpoint.url}/v1/models: must be a list of models, got {one_line_of(text, 60)!r}")
    models = [one for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
    return {one["id"]: _names(one.get("policies")) for one in models}


def _names(listed: object) -> list[str]:
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
