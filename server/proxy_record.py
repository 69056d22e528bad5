"""What is recorded of another server's traffic, beyond what `record.py` records of our own; docs/proxy.md lists it.

Answers are read once they have ended, in a thread of their own: the event loop only keeps bytes and times.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from math import exp, log
from threading import Lock
from typing import Any

from ..base.errors import counted, message_of, one_line_of, told
from ..base.files import decode_json, write_whole
from ..base.terminal import tell
from ..observing.load_generator import Counters, ServerTokenizer, acceptance_between, counters
from ..observing.server import ClientClock, Endpoint, Exchange, Piece, Sent, ServerError, read_exchange
from ..runs.observed import BY_TOKENIZER, BY_USAGE, UNCOUNTED, ObservedMeta, ObservedRun, write_observed
from ..traces.importers.reading import EventStream
from ..traces.workloads.arrival import MOST_COUNT, PS_PER_S, Arrival
from .options import ProxyOptions, RecordingOptions
from .record import PROMPTS, Row, TrafficFiles

OBSERVED, RESPONSES, METRICS, ABOUT = "observed", "responses", "metrics", "proxy.json"
PATHS = ("/v1/completions", "/v1/chat/completions")  # what is recorded
MOST_KEPT_BYTES = 2**26  # of an answer
_TRAFFIC = "recorded traffic"
_NOTES = (
    "requests are those of the server's own clients, whose sampling may differ; latencies are those at the proxy",
    "an answer that was not streamed has no time of its first token",
)
# Fields that may report an answer's drafts, at the top of a response or in its choice.
_TELLING = ("metrics", "timings", "meta_info", "speculative_decoding", "spec_decode_metrics")
_OF_CHOICE = ("meta_info", "speculative_decoding", "speculative_decoding_stats", "avg_decoded_tokens_per_iter")
_MOST_EVENT_BYTES, _MOST_REASONS = 2**24, 32


class Delays:
    """How long something took, each time, in memory that does not grow; shares of them to 2%. One thread notes."""

    _FINE = 50  # buckets for each factor of e

    def __init__(self) -> None:
        self._counts = Counter[int]()  # by bucket
        self._most_ns = 0

    def note(self, span_ns: int) -> None:
        """One more, nanoseconds."""
        self._counts[int(log(max(1, span_ns)) * self._FINE)] += 1
        self._most_ns = max(self._most_ns, span_ns)

    def seconds_at(self, share: float) -> float:
        """The quantile at `share`, in (0, 1], seconds; 0 without any."""
        left = share * self._counts.total()
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return min(exp((place + 1) / self._FINE), self._most_ns) / 1e9
        return self._most_ns / 1e9

    def to_json(self) -> dict[str, Any]:
        """How many, and seconds."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        found = {name: round(self.seconds_at(share), 9) for name, share in shares.items()}
        return {"count": self._counts.total(), **found, "max": self._most_ns / 1e9}


@dataclass(slots=True, kw_only=True, eq=False)
class Passed:
    """A request that is passed on, and its answer so far. Times are picoseconds of the clock."""

    request_id: str
    body: bytes  # of the request
    arrived_at_ps: int
    sent_at_ps: int = 0
    ended_at_ps: int = 0
    status: int = 0  # 0: none came
    headers: Mapping[str, str] = field(default_factory=dict)  # of the answer
    pieces: list[Piece] = field(default_factory=list)
    num_bytes: int = 0
    failed: str = ""  # why no whole answer came from the server; "": it did, or the client left
    left: bool = False  # whether the client went before its end
    asked: dict[str, Any] = field(default_factory=dict)  # what the body says, once it is read


class _LeftOut(ValueError):  # noqa: N818 - no error: why something is not recorded
    pass


class ProxyRecorder:
    """Records what is passed on; all methods except `close` and `words` are called in the event loop's thread.

    Recorded are requests of one `model`; `endpoint` is for the proxy's own.

    Raises:
        ArgumentError: a folder that exists.
        ServerError: `count_tokens` for a server without a tokenizer's endpoint.
        OSError: the folder cannot be made.
    """

    def __init__(self, endpoint: Endpoint, model: str, options: ProxyOptions, asked: RecordingOptions) -> None:
        self._endpoint, self._model, self._options = endpoint, model, options
        self._record_hashes = asked.record_hashes
        # A busy server may count a text only after it has answered others.
        patient = Endpoint(endpoint.url, api_key=options.upstream_key, timeout_s=options.timeout_s)
        self._tokenizer = ServerTokenizer(patient, model) if options.count_tokens else None
        self.clock = ClientClock()
        self.held, self.asked_late, self.loop_late = Delays(), Delays(), Delays()  # chunks, requests, the event loop
        self._files = TrafficFiles(asked, self._write_beside)
        (self._files.folder / OBSERVED).mkdir()
        self._before = self._counters(0)
        self._numbers, self._lock = count(1), Lock()
        self._found: list[Exchange] = []  # since the latest files
        self._num_recorded, self._was_counted = 0, False
        self._not_recorded: dict[str, int] = {}  # requests by why
        self._num_unread = 0  # recorded requests whose answer has fields of drafts that are no JSON
        self._reader = ThreadPoolExecutor(1, "paceline-reader")
        self._files.start()

    def began(self, method: str, path: str, body: bytes) -> Passed | None:
        """A whole request has come; None for one that is not recorded."""
        if method != "POST" or path not in PATHS:
            self.leave_out("no completion and no chat")
            return None
        arrived_at_ps = self.clock.now_ps()
        passed = Passed(request_id=f"r{next(self._numbers):06}", body=body, arrived_at_ps=arrived_at_ps)
        self._files.began(passed.request_id, arrived_at_ps)
        return passed

    def sent(self, passed: Passed) -> None:
        """A request goes to the server now."""
        passed.sent_at_ps = self.clock.now_ps()
        self.asked_late.note((passed.sent_at_ps - passed.arrived_at_ps) // 1000)

    def came(self, passed: Passed | None, piece: bytes, came_ns: int) -> None:
        """A piece of an answer that was read at `came_ns`, by `perf_counter_ns`, has just been passed on."""
        self.held.note(time.perf_counter_ns() - came_ns)
        if passed is None:
            return
        passed.num_bytes += len(piece)
        if passed.num_bytes <= MOST_KEPT_BYTES:
            passed.pieces.append((piece, self.clock.ps_of(came_ns)))
        else:
            passed.pieces.clear()

    def leave_out(self, why: str) -> None:
        """A request is not recorded."""
        with self._lock:
            if why not in self._not_recorded and len(self._not_recorded) >= _MOST_REASONS:
                why = "other reasons"
            self._not_recorded[why] = self._not_recorded.get(why, 0) + 1

    def ended(self, passed: Passed) -> None:
        """Its answer ended, or failed, or its client has left."""
        passed.ended_at_ps = self.clock.now_ps()
        self._reader.submit(self._take, passed)

    def close(self) -> None:
        """Write what is left, and end."""
        self._reader.shutdown()
        self._files.close()
        self._write_about()

    def words(self) -> str:
        """What was recorded, and how long the proxy held chunks, in one line."""
        others = sum(self._not_recorded.values())
        held, late = self.held, self.asked_late
        unread = f" (acceptance of {self._num_unread:,} could not be read)" if self._num_unread else ""
        return (
            f"{counted(self._num_recorded, 'request')} recorded{unread}, {others:,} not; chunks were held "
            f"{1e3 * held.seconds_at(0.5):.2f} ms (p50), {1e3 * held.seconds_at(0.99):.2f} ms (p99), requests "
            f"{1e3 * late.seconds_at(0.5):.2f} ms, {1e3 * late.seconds_at(0.99):.2f} ms: {self._files.folder}"
        )

    def _asked(self, body: bytes) -> dict[str, Any]:
        """The request's JSON; raises _LeftOut, with the reason, for one that is not recorded."""
        try:
            asked = decode_json(body, constants=True)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise _LeftOut("no JSON object")
        if asked.get("model", self._model) != self._model:
            raise _LeftOut(f"another model, {one_line_of(str(asked['model']), 60)}")
        prompts = asked.get("prompt")
        several = isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int)
        if several or asked.get("n") not in (None, 1) or asked.get("best_of") not in (None, 1):
            raise _LeftOut("several answers in one request")
        return asked

    def _take(self, passed: Passed) -> None:
        """Read an answer that has ended; in the reader's thread."""
        try:
            passed.asked = self._asked(passed.body)
            found = self._read(passed)
            telling = self._row_of(passed) if found.seen.finished else None
        except _LeftOut as error:
            self.leave_out(str(error))
            self._files.ended(passed.request_id, None, {})
            return
        except Exception as error:  # noqa: BLE001 - no answer may end the recording
            tell(f"{passed.request_id} is not recorded: {told(error)}")
            self.leave_out("an answer that could not be read")
            self._files.ended(passed.request_id, None, {})
            return
        seen, rows = found.seen, dict[str, Row]()
        lengths = None
        if seen.prompt_tokens is not None and seen.output_tokens:
            lengths = seen.prompt_tokens, seen.output_tokens
        if telling is not None:
            rows[RESPONSES] = telling
        if found.prompt and seen.finished and not self._record_hashes and "messages" not in passed.asked:
            rows[PROMPTS] = {"id": passed.request_id, "prompt": found.prompt}
        with self._lock:
            if not self._files.is_full:
                self._found.append(replace(found, prompt="", body={}, answer=""))
                self._num_recorded += 1
        self._files.ended(passed.request_id, lengths, rows)

    def _read(self, passed: Passed) -> Exchange:
        most = passed.asked.get("max_completion_tokens") or passed.asked.get("max_tokens")  # either may be null
        most = most if type(most) is int and 1 <= most <= MOST_COUNT else None
        sent_at_ps = passed.sent_at_ps or passed.arrived_at_ps
        sent = Sent(
            arrival=Arrival(passed.request_id, passed.arrived_at_ps, 1, most or 1),
            prompt_id=_digest(passed.asked),
            text=_prompt_of(passed.asked),
            body=passed.asked,
        )
        found = read_exchange(
            self._pieces(passed),
            sent,
            self._endpoint,
            due_at_ps=passed.arrived_at_ps,
            sent_at_ps=sent_at_ps,
            now_ps=lambda: passed.ended_at_ps,
            whole=not _is_stream(passed),
        )
        if passed.left and found.seen.failed:
            found = replace(found, seen=replace(found.seen, ended_at_ps=None, failed=""))
        seen = found.seen
        if self._tokenizer is not None and seen.finished and None in (seen.prompt_tokens, seen.output_tokens):
            if seen.prompt_tokens is None and isinstance(ids := _prompt(passed.asked), list):
                found = replace(found, seen=replace(seen, prompt_tokens=len(ids)))
            seen, self._was_counted = self._tokenizer.counted(found), True
        return replace(found, seen=replace(seen, asked_tokens=most or max(1, seen.output_tokens or 1)))

    def _pieces(self, passed: Passed) -> Iterator[Piece]:
        """The received pieces of an answer; raises ServerError for one that failed."""
        if passed.status not in (0, 200):
            raise ServerError(f"HTTP {passed.status}: {_message(passed)}")
        if passed.num_bytes > MOST_KEPT_BYTES:
            raise ServerError(f"the answer is longer than {MOST_KEPT_BYTES:,} bytes, and was not read")
        if (coding := passed.headers.get("content-encoding", "identity")) != "identity" and not passed.failed:
            raise ServerError(f"the answer is encoded by {one_line_of(coding, 60)}, as its client asked")
        yield from passed.pieces
        if passed.failed:
            raise ServerError(passed.failed)

    def _row_of(self, passed: Passed) -> Row | None:
        """An answer's fields of drafts, and its usage, without its text; None if it has none, or some are no JSON."""
        row, choice = dict[str, Any](), dict[str, Any]()
        try:
            for content in _objects(passed):
                row |= {name: content[name] for name in ("usage", *_TELLING) if content.get(name)}
                row |= {name: None for name in _TELLING if name in content and name not in row}
                choices = content.get("choices")
                first = choices[0] if isinstance(choices, list) and choices else {}
                if isinstance(first, dict):
                    choice |= {name: first[name] for name in _OF_CHOICE if first.get(name)}
        except ValueError:  # the parts before it would mislead
            self._num_unread += 1
            return None
        if not (choice or set(row) & set(_TELLING)):
            return None
        own = {"id": passed.request_id, "prompt_sha256": _digest(passed.asked)}
        return {**own, "choices": [{"index": 0, **choice}], **row}

    def _write_beside(self, number: int) -> int:
        """Write a part of the run, and the server's counters; in the thread of the files."""
        with self._lock:
            found, self._found = self._found, []
        if not found:
            return 0
        place = self._files.folder / OBSERVED / f"{number:06}"
        try:
            write_observed(self._part(found, self._counters(number)), place)
            self._write_about()
            return sum(file.stat().st_size for file in place.iterdir())
        except OSError as error:  # a full disk must not end the proxy
            tell(f"{place}: {error.strerror}; {counted(len(found), 'request')} are not kept")
            return 0

    def _part(self, found: Sequence[Exchange], after: Counters) -> ObservedRun:
        """Requests that ended since the latest part; counters count from the beginning."""
        seen = tuple(sorted((one.seen for one in found), key=lambda one: (one.sent_at_ps, one.request_id)))
        acceptance, why = acceptance_between(self._before, after, seen, self._model)
        uncounted = any(one.finished and None in (one.prompt_tokens, one.output_tokens) for one in seen)
        odd = sorted({name for one in found for name in one.odd})
        meta = ObservedMeta(
            url=self._endpoint.url,
            model=self._model,
            endpoint=" or ".join(PATHS),
            drafter=self._options.drafter,
            workload=_TRAFFIC,
            prompts=_TRAFFIC,
            loop="open",
            counted_by=UNCOUNTED if uncounted else BY_TOKENIZER if self._was_counted else BY_USAGE,
            acceptance=acceptance,
            acceptance_unknown=why,
            notes=(*_NOTES, *(f"answers told {name} that cannot be a count: it counts as unknown" for name in odd)),
            ended_at_ps=self.clock.now_ps(),
        )
        return ObservedRun(meta, seen)

    def _counters(self, number: int) -> Counters:
        """The server's counters now, written to a file if they are a known engine's."""
        found = counters(self._endpoint)
        if found.any_known:
            place = self._files.folder / METRICS
            place.mkdir(exist_ok=True)
            write_whole(place / f"{number:06}.prom", found.text)
        return found

    def _write_about(self) -> None:
        with self._lock:
            about = {
                "url": self._endpoint.url,
                "model": self._model,
                "requests_recorded": self._num_recorded,
                "requests_not_recorded": dict(self._not_recorded),
                "acceptance_not_read": self._num_unread,
                "chunks_held_s": self.held.to_json(),
                "requests_held_s": self.asked_late.to_json(),
                "event_loop_late_s": self.loop_late.to_json(),
                "ended_at_s": self.clock.now_ps() / PS_PER_S,
            }
        write_whole(self._files.folder / ABOUT, json.dumps(about, indent=1) + "\n")


def _is_stream(passed: Passed) -> bool:
    return passed.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def _prompt(body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever a client sent
    """The prompt, a text or a list of token ids if it is valid; one that is alone in a list is taken out of it."""
    prompt = body.get("prompt")
    return prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int) else prompt


def _prompt_of(body: Mapping[str, Any]) -> str:
    """The text of a prompt, or of a dialogue's messages; "" where token ids were sent, or what is no text."""
    if isinstance(prompt := _prompt(body), str):
        return prompt
    messages = body.get("messages")
    said = [one.get("content") for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    texts = [text for text in said if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(said) else ""


def _digest(asked: Mapping[str, Any]) -> str:
    """SHA-256 of a prompt, or of messages."""
    return sha256(json.dumps(asked.get("prompt", asked.get("messages"))).encode()).hexdigest()


def _message(passed: Passed) -> str:
    body = b"".join(piece for piece, _ in passed.pieces)
    try:
        message = message_of(decode_json(body))
    except ValueError:
        message = ""
    return one_line_of(message or body.decode("utf-8", errors="replace"), 200)


def _objects(passed: Passed) -> Iterator[dict[str, Any]]:
    """The objects of an answer that may report its drafts; raises ValueError for what is no JSON."""
    body = b"".join(piece for piece, _ in passed.pieces)
    names = [f'"{name}"' for name in ("usage", *_TELLING, *_OF_CHOICE)]
    texts: Iterator[str] = iter([body.decode("utf-8", errors="replace")])
    if _is_stream(passed):
        texts = (event.data for event in EventStream(most_bytes=_MOST_EVENT_BYTES).feed(body))
    for text in texts:
        if any(name in text for name in names):
            content = decode_json(text.encode(), constants=True)
            if isinstance(content, dict):
                yield content
