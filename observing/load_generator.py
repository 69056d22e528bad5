"""Send requests to a server at their times, or a number at a time, and read what the server counts meanwhile.

Each running request has a thread. What a server does not report about its speculative decoding is unknown, never 0; a
page that cannot be read is a reason why acceptance is unknown, and ends no run. Names and arithmetic are those of
imported pages (`traces.importers.metrics_pages`). The server's own tokenizer counts tokens of answers without `usage`:
an answer's text may become other tokens than were generated, and an end of sequence has no text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from threading import Condition, Thread
from typing import Any

from ..base.errors import one_line_of
from ..base.files import decode_json
from ..base.terminal import Interrupts
from ..runs.observed import ObservedAcceptance, ObservedRequest, acceptance_by_answers
from ..traces.errors import TraceFormatError
from ..traces.importers.metrics_pages import ENGINES, Engine, Page, Scrapes, Speculation, engine_of, page_of
from ..traces.workloads.arrival import MOST_COUNT, PS_PER_S, Arrival
from .server import ClientClock, Endpoint, Exchange, ServerError

_LONGEST = 400  # characters of a reason
_PATHS = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's, whose first is not in Prometheus' format


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A page of metrics at one time."""

    text: str = ""  # of the page
    path: str = _PATHS[0]  # below the server's address
    why_none: str = ""  # why there is no page, in words; "" if there is one

    def page(self, when: str) -> Page:
        """Its known metrics, as read `when`; raises TraceFormatError, with the line."""
        lines = enumerate(self.text.splitlines(), start=1)
        return page_of((f"{self.path} {when} the run, line {number}", line) for number, line in lines)

    @property
    def any_known(self) -> bool:
        """Whether a line begins as an engine's metric does."""
        prefixes = tuple(engine.prefix for engine in ENGINES)
        return any(line.startswith(prefixes) for line in self.text.splitlines())


def counters(endpoint: Endpoint) -> Counters:
    """The server's counters now."""
    found = [_counters(endpoint, _PATHS[0])]
    if not found[0].any_known:
        found.append(_counters(endpoint, _PATHS[1]))
    return next((one for one in found if one.any_known), found[0])


def _counters(endpoint: Endpoint, path: str) -> Counters:
    try:
        return Counters(text=endpoint.page(path), path=path)
    except ServerError as error:
        return Counters(path=path, why_none=str(error))


def acceptance_between(
    before: Counters, after: Counters, requests: Iterable[ObservedRequest], model: str
) -> tuple[ObservedAcceptance | None, str]:
    """(acceptance of a run, why it is unknown): by counters, else by the answers, else by a gauge.

    Series that name another model are left out.
    """
    found, why = _by_pages(before, after, model)
    if found is not None and found.drafted is not None:
        return found, ""
    if (by_answers := acceptance_by_answers(requests)) is not None:
        return by_answers, ""
    return found, "" if found is not None else one_line_of(f"{why}, and no answer counts its drafts", _LONGEST)


def _by_pages(before: Counters, after: Counters, model: str) -> tuple[ObservedAcceptance | None, str]:
    """(acceptance by pages of metrics, why they lack it)."""
    if after.why_none:
        return None, after.why_none
    try:
        pages = [one.page(when) for one, when in ((before, "before"), (after, "after"))]
        scrapes = Scrapes(page.of_model(model) for page in pages)
        engine = engine_of(scrapes)
        if engine is None:
            return None, _why_none(after.path, pages[-1], model)
        if before.why_none:
            return None, f"before the run: {before.why_none}"
        return _told(after.path, Speculation(scrapes, engine), engine)
    except TraceFormatError as error:
        return None, str(error)


def _why_none(path: str, page: Page, model: str) -> str:
    of_all = engine_of(Scrapes([page]))
    if of_all is not None:
        speaking = [one for one in page.samples if one.name in of_all.of_speculation]
        models = sorted({one.labels["model_name"] for one in speaking if "model_name" in one.labels})
        return f"{path} has counters of model {', '.join(models)}, asked was {model}"
    near = f" (but {', '.join(sorted(page.others))})" if page.others else ""
    return f"{path} has no counters of speculative decoding{near}"


def _told(path: str, found: Speculation, engine: Engine) -> tuple[ObservedAcceptance | None, str]:
    drafts, drafted, accepted = found.drafts, found.drafted, found.accepted
    if drafted is not None and accepted is not None:
        if accepted > drafted:
            return None, f"{path} counts {accepted:g} tokens accepted of {drafted:g} drafted"
        source = f"counters of {path} ({engine.name})"
        try:
            by_place = tuple(round(count) for count in found.by_place(engine.accepted_by_place))
        except TraceFormatError as error:
            by_place, source = (), one_line_of(f"{source}; by position it is unknown: {error}", _LONGEST)
        return ObservedAcceptance(
            source=source,
            drafts=None if drafts is None else round(drafts),
            drafted=round(drafted),
            accepted=round(accepted),
            accepted_by_place=by_place or None,
            # The target's own token is included, as in vLLM's mean acceptance length.
            accept_length=1 + accepted / drafts if drafts else None,
        ), ""
    length, source = found.counted_length, f"counters of {path} ({engine.name})"
    if length is None:
        length, source = found.shown_length, f"{engine.length}, a gauge of the server's last interval"
    if length is None:
        return None, f"{path} has metrics of {engine.name}, and none of them tells that anything was drafted"
    if length < 1:
        return None, f"{path} gives {length:.3g} tokens a step, fewer than one"
    return ObservedAcceptance(source=source, accept_length=length), ""


_LOOK_S = 0.05  # between two looks at interrupts
_END_S = 5.0  # that a cut connection takes at most to be noticed

# Sends a request that was due at a time, picoseconds, and waits for its answer.
Send = Callable[[Arrival, int], Exchange]


class LoadGenerator:
    """Sends the requests of a workload and gathers their answers; after a stop it sends no request.

    `send` is called in threads, and `on_ended` for each request that ended, in any thread, one at a time.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        send: Send,
        clock: ClientClock,
        stop: Interrupts,
        on_ended: Callable[[], None],
    ) -> None:
        self._send, self._clock, self._stop, self._on_ended = send, clock, stop, on_ended
        self._coming: list[tuple[int, int, Arrival]] = []
        self._count = 0
        self._changed = Condition()
        self._found: list[Exchange] = []
        self._running = 0
        self._threads: list[Thread] = []
        self._broken: BaseException | None = None
        for arrival in arrivals:
            self._add(arrival)

    def open_loop(self) -> None:
        """Send each request when it is due, however many are running; returns when all ended, or at a stop."""
        while (arrival := self._next_due()) is not None:
            self._start(partial(self._serve, arrival, arrival.arrives_ps))

    def closed_loop(self, concurrency: int) -> None:
        """Keep `concurrency` requests running, whatever their times of arrival; waits within sessions are kept."""
        for _ in range(concurrency):
            self._start(self._work)
        with self._changed:
            while self._running and not self._stop.heard():
                self._changed.wait(_LOOK_S)

    def ended(self) -> list[Exchange]:
        """All requests, as they were sent, once threads have noticed cut connections; raises what a thread raised."""
        for thread in self._threads:
            thread.join(_END_S)
        if self._broken is not None:
            raise self._broken
        with self._changed:
            return sorted(self._found, key=lambda one: (one.seen.sent_at_ps, one.seen.request_id))

    def _add(self, arrival: Arrival) -> None:
        self._count += 1
        heappush(self._coming, (arrival.arrives_ps, self._count, arrival))

    def _next_due(self) -> Arrival | None:
        """The next request, at its time; None when there are no more, or at a stop."""
        with self._changed:
            while not self._stop.heard() and self._broken is None:
                if not self._coming:
                    if not self._running:
                        return None
                    self._changed.wait(_LOOK_S)
                    continue
                left_s = (self._coming[0][0] - self._clock.now_ps()) / PS_PER_S
                if left_s <= 0:
                    return heappop(self._coming)[2]
                self._changed.wait(min(left_s, _LOOK_S))
        return None

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by `ended`, in the thread of the run
                self._broken = error
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        with self._changed:
            self._running += 1
        thread = Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """A closed loop's thread: one session after another, each request when the one before it has ended."""
        while (arrival := self._take()) is not None:
            for request in self._session(arrival):
                self._serve(request, self._clock.now_ps(), keep=False)

    def _take(self) -> Arrival | None:
        with self._changed:
            return heappop(self._coming)[2] if self._coming and not self._stop.heard() else None

    def _session(self, arrival: Arrival) -> Iterator[Arrival]:
        """A request and those that follow it, each after its wait."""
        waiting = [(0, 0, arrival)]
        count = 0
        while waiting and not self._stop.heard():
            due_ps, _, request = heappop(waiting)
            with self._changed:
                while (left_s := (due_ps - self._clock.now_ps()) / PS_PER_S) > 0 and not self._stop.heard():
                    self._changed.wait(min(left_s, _LOOK_S))
            if self._stop.heard():
                return
            yield request
            for following in request.turns.after(self._clock.now_ps()) if request.turns is not None else ():
                count += 1
                heappush(waiting, (following.arrives_ps, count, following))

    def _serve(self, arrival: Arrival, due_at_ps: int, *, keep: bool = True) -> None:
        """Send one request; with `keep`, its session's next ones are queued."""
        found = self._send(arrival, due_at_ps)
        with self._changed:
            self._found.append(found)
            if found.seen.ended_at_ps is not None:
                self._on_ended()
                if keep and arrival.turns is not None:
                    for following in arrival.turns.after(found.seen.ended_at_ps):
                        self._add(following)
            self._changed.notify_all()


# Path below the server, and what is posted there for a text: vLLM, llama.cpp's server, llama-cpp-python.
_ASKED: tuple[tuple[str, Callable[[str, str], dict[str, Any]]], ...] = (
    ("/tokenize", lambda model, text: {"model": model, "prompt": text}),
    ("/tokenize", lambda _, text: {"content": text, "add_special": True}),
    ("/extras/tokenize/count", lambda model, text: {"model": model, "input": text}),
)
# Fields of a chat that its template reads, which vLLM counts in place of a text.
_OF_CHATS = (
    *("messages", "tools", "chat_template", "chat_template_kwargs"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
)


class ServerTokenizer:
    """Counts tokens of texts by the model's tokenizer; raises ServerError for a server without a known endpoint."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model
        # llama.cpp's server finds no text in what vLLM is asked, and counts none.
        self._form = next((form for form in _ASKED if self._count_by(form, "one two")), None)
        if self._form is None:
            raise ServerError(f"{endpoint.url}: has no tokenizer to ask (/tokenize, /extras/tokenize/count)")
        # Tokens added before every text, such as a beginning of sequence, do not belong to an answer.
        self._before = self.count("")

    def count(self, text: str) -> int:
        """Tokens of a prompt; raises ServerError for a server that no longer answers."""
        assert self._form is not None
        found = self._count_by(self._form, text)
        if found is None:
            raise ServerError(f"{self._endpoint.url}{self._form[0]}: tells no count of tokens")
        return found

    def counted(self, found: Exchange) -> ObservedRequest:
        """The request with counts that its answer lacked, as far as the server gives them; raises nothing."""
        seen = found.seen
        if not seen.finished:
            return seen
        try:
            prompt = seen.prompt_tokens
            if prompt is None and found.prompt:  # without a text, what was sent is not known
                counts_chats = "messages" in found.body and self._form is _ASKED[0]
                prompt = self._count_chat(found.body) if counts_chats else self.count(found.prompt)
            output = seen.output_tokens if seen.output_tokens is not None else self.count(found.answer) - self._before
        except ServerError:
            return seen
        # A prompt of no token or an answer of less than none is no count: such a tokenizer is not used.
        return replace(seen, prompt_tokens=prompt or None, output_tokens=output if output >= 0 else None)

    def _count_chat(self, body: Mapping[str, Any]) -> int | None:
        """Tokens of a chat with its template; None where the server tells none: its text alone would be fewer."""
        chat = {name: body[name] for name in _OF_CHATS if name in body}
        return self._told(_ASKED[0][0], {"model": self._model, **chat})

    def _count_by(self, form: tuple[str, Callable[[str, str], dict[str, Any]]], text: str) -> int | None:
        path, body = form
        return self._told(path, body(self._model, text))

    def _told(self, path: str, body: dict[str, Any]) -> int | None:
        try:
            content = decode_json(self._endpoint.page(path, body).encode("utf-8"))
        except ValueError:
            return None
        count = content.get("count") if isinstance(content, dict) else None
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MOST_COUNT:
            return count
        tokens = content.get("tokens") if isinstance(content, dict) else None
        return len(tokens) if isinstance(tokens, list) else None
