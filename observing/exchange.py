"""One request and its streamed answer, with the times at which a client saw its parts."""

from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

from ..runs.observed.request import ObservedRequest
from ..traces.importers.reading.event_stream import BrokenStreamError, EventStream
from ..traces.workloads.arrival import Arrival
from .chunk import PAIR, Chunk, chunk_of
from .clock import Clock
from .endpoint import Endpoint, ServerError

_PIECE = 2**16
_MOST_EVENT_BYTES = 2**24  # of one event of a stream
_BYTES_A_TOKEN, _BYTES_BESIDE = 2**12, 2**20  # that an answer may have at most: an event for each token has about 300
_MOST_STREAM_BYTES = 2**28
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What is sent for a request of the workload.

    Attributes:
        arrival: the request.
        prompt_id: of the prompt.
        text: of the prompt.
        body: all that is posted.
    """

    arrival: Arrival
    prompt_id: str
    text: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request with the text of its answer, which is kept no longer than its tokens are counted.

    Attributes:
        seen: what the client saw.
        prompt: the text that was sent.
        answer: the text that came.
        done: whether [DONE] came at its end.
        odd: names of counts that cannot be right, such as negative ones; the record has none for them.
    """

    seen: ObservedRequest
    prompt: str
    answer: str
    done: bool
    odd: frozenset[str] = frozenset()


class _Answer:
    """What has come so far."""

    def __init__(self) -> None:
        self.outputs_at_ps: list[int] = []
        self.texts: list[str] = []
        self.ended_at_ps: int | None = None
        self.told: dict[str, int] = {}
        self.odd: set[str] = set()
        self.finish_reason = ""
        self.done = False

    def take(self, chunk: Chunk, at_ps: int) -> None:
        """One event that came at a time."""
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


def exchange(endpoint: Endpoint, path: str, sent: Sent, due_at_ps: int, clock: Clock) -> Exchange:
    """Send a request and read its answer to the end; what goes wrong is in the record, and nothing is raised.

    A request whose connection was cut by `Endpoint.cut` did not end, and did not fail.
    """
    answer, failed = _Answer(), ""
    most_bytes = min(_MOST_STREAM_BYTES, _BYTES_BESIDE + _BYTES_A_TOKEN * sent.arrival.output_tokens)
    sent_at_ps = clock.now_ps()
    try:
        with endpoint.asked(path, sent.body, most_bytes=most_bytes) as response:
            _read(response, answer, clock, endpoint)
    except (ServerError, BrokenStreamError) as error:
        failed = endpoint.hidden(str(error))
    except (OSError, HTTPException, ValueError) as error:
        failed = endpoint.reason(error)
    if failed and answer.outputs_at_ps:
        failed = f"{failed} (the answer had begun)"
    ended_at_ps = clock.now_ps() if failed or answer.ended_at_ps is None else answer.ended_at_ps
    is_cut = bool(failed) and endpoint.is_cut
    seen = ObservedRequest(
        request_id=sent.arrival.request_id,
        tag=sent.arrival.tag,
        slo=sent.arrival.slo,
        prompt_id=sent.prompt_id,
        asked_tokens=sent.arrival.output_tokens,
        due_at_ps=min(due_at_ps, sent_at_ps),
        sent_at_ps=sent_at_ps,
        outputs_at_ps=tuple(answer.outputs_at_ps),
        ended_at_ps=None if is_cut else ended_at_ps,
        finish_reason=answer.finish_reason,
        failed="" if is_cut else failed,
        **answer.told,
    )
    return Exchange(
        seen=seen, prompt=sent.text, answer="".join(answer.texts), done=answer.done, odd=frozenset(answer.odd)
    )


def _read(response: HTTPResponse, answer: _Answer, clock: Clock, endpoint: Endpoint) -> None:
    unknown: list[str] = []
    for data, at_ps in _events(response, clock, unknown):
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


def _events(response: HTTPResponse, clock: Clock, unknown: list[str]) -> Iterator[tuple[str, int]]:
    """(data, when it came) of each event; the first line of no known field goes to `unknown`."""

    def note(_: int, line: bytes) -> None:
        if not unknown:
            unknown.append(line[:60].decode("utf-8", errors="replace"))

    stream = EventStream(most_bytes=_MOST_EVENT_BYTES, unknown=note)
    while piece := response.read1(_PIECE):
        at_ps = clock.now_ps()
        for event in stream.feed(piece):
            yield event.data, at_ps
