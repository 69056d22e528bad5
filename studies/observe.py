"""What `paceline observe` does: send a workload to a running server and record what its client sees.

Each request of the workload gets a prompt of its tag, all of them in turn, in an order that the seed draws.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Literal

from ..base.errors import ArgumentError, check_least, check_within, counted
from ..base.files import decode_json, kind_of_json
from ..base.options import Secret, key_opt, opt
from ..base.terminal import Interrupts, Progress, held_interrupts
from ..observing.load_generator import LoadGenerator, ServerTokenizer, acceptance_between, counters
from ..observing.server import ClientClock, Endpoint, Exchange, Sent, ServerError, exchange, model_of
from ..reports.observed import ObservedFigures, observed_figures, observed_lines, observed_tables
from ..reports.tables import Grid, Printed, flat_rows
from ..runs.observed import (
    BY_TOKENIZER,
    BY_USAGE,
    UNCOUNTED,
    ObservedMeta,
    ObservedRequest,
    ObservedRun,
    read_observed,
    write_observed,
)
from ..runtime.prompts import Prompt, prompts_of
from ..traces.workloads import WorkloadOptions, with_options
from ..traces.workloads.arrival import Arrival, WorkloadAbout, requests_of
from ..traces.workloads.workload import is_closed
from .setting import open_recording


class PromptsInTurn:
    """Gives prompts; none is repeated before all of its tag were used. Not safe for threads."""

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        self._of_tag: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            self._of_tag.setdefault(prompt.tag, []).append(prompt)
        self._of_tag[""] = list(prompts)
        for tag, listed in self._of_tag.items():
            Random(f"{seed}/{tag}").shuffle(listed)
        self._given = dict.fromkeys(self._of_tag, 0)

    def next_for(self, arrival: Arrival) -> Prompt:
        """The next one of its tag; raises ArgumentError where no prompt has it."""
        listed = self._of_tag.get(arrival.tag)
        if listed is None:
            known = ", ".join(sorted(filter(None, self._of_tag)))
            raise ArgumentError(
                f"`prompts` must have one of each tag of the workload, has {known}, got {arrival.tag!r}; `tag` gives "
                "all requests one"
            )
        number = self._given[arrival.tag]
        self._given[arrival.tag] = number + 1
        return listed[number % len(listed)]

    @property
    def num_repeated(self) -> int:
        """Number of requests whose prompt an earlier one had."""
        return sum(max(0, given - len(self._of_tag[tag])) for tag, given in self._given.items())


INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Observed(Printed):
    """A run of a server as its client saw it; prints as `paceline observe` does."""

    run: ObservedRun
    figures: ObservedFigures

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped by Ctrl-C or SIGTERM."""
        return self.run.meta.stopped == INTERRUPTED

    @property
    def answered(self) -> tuple[int, int]:
        """(requests that finished, all of them)."""
        return self.figures.finished, self.figures.requests

    def write(self, path: str | Path) -> None:
        """Write the folder of the run; raises ValueError if it exists."""
        write_observed(self.run, Path(path))

    def tables(self) -> Sequence[Grid]:
        return observed_tables(self.run, self.figures)

    def lines(self) -> Sequence[str]:
        return observed_lines(self.run, self.figures)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        return {"meta": self.run.meta.model_dump(mode="json"), **self.figures.to_json()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return flat_rows([self.figures.to_json()])


def shown_run(run: ObservedRun | str | Path) -> Observed:
    """A run with its figures, or the folder of one; raises TraceFormatError for a folder without a valid one."""
    read = run if isinstance(run, ObservedRun) else read_observed(Path(run))
    return Observed(run=read, figures=observed_figures(read))


_MOST_CONCURRENCY = 4096
_OWN_FIELDS = {"model", "prompt", "messages", "max_tokens", "temperature", "seed", "stream", "stream_options"}
_OWN_FIELDS |= {"ignore_eos", "n", "max_completion_tokens"}  # one answer a request, as long as the workload says


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How requests are sent. `api_key` is the key itself; raises ArgumentError for a value out of range."""

    model: str | None = opt(None, "Name of the model; default: the only one that the server lists.")
    chat: bool = opt(False, "Ask by /v1/chat/completions; default: by /v1/completions.")
    api_key: Secret | None = key_opt("Environment variable that holds the server's key; it is written nowhere.")
    timeout_s: float = opt(
        600.0, "Most seconds of a request, to the end of its answer; else it failed.", flag="--timeout-seconds"
    )
    temperature: float = opt(0.0, "Sent with each request; 0: the likeliest token.")
    ignore_eos: bool = opt(False, "Ask for answers as long as the workload says (vLLM, SGLang, llama.cpp's server).")
    extra_body: str | Mapping[str, Any] | None = opt(
        None,
        "Further fields of every request, a JSON object, as '{\"top_p\": 0.9}'.",
        metavar="JSON",
    )
    usage: bool = opt(True, "Ask for counts of tokens at the end of each stream.", flag="--usage/--no-usage")
    count_tokens: bool = opt(False, "Where the server reports no usage, let its tokenizer count after the run.")
    drafter: str | None = opt(
        None, "What the server's drafter is called, for the record: runs of others are not calibrated together."
    )
    warmup: int = opt(1, "Requests sent first, one by one, that are not measured.", metavar="N")

    def __post_init__(self) -> None:
        check_within("`timeout_seconds`", self.timeout_s, "(0, 1e6]")
        check_within("`temperature`", self.temperature, "[0, 100]")
        check_least("`warmup`", self.warmup, 0)
        if both := sorted(self.extra.keys() & _OWN_FIELDS):
            raise ArgumentError(f"`extra_body` must leave out {both[0]}, which the workload and other options decide")

    @property
    def path(self) -> str:
        """The path below the server's address."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def extra(self) -> Mapping[str, Any]:
        """The fields of `extra_body`; raises ArgumentError unless it is a JSON object."""
        if not isinstance(self.extra_body, str):
            return self.extra_body or {}
        try:
            found = decode_json(self.extra_body.encode())
        except ValueError as error:
            raise ArgumentError(f"`extra_body` must be JSON, got {self.extra_body!r}: {error}") from None
        if not isinstance(found, dict):
            raise ArgumentError(f"`extra_body` must be a JSON object, got {kind_of_json(found)}")
        return found

    def under(self, policy: str | None) -> "Asking":
        """The same, with the field `policy` of paceline serve; raises ArgumentError if that is set already."""
        if policy is None:
            return self
        if "policy" in self.extra:
            raise ArgumentError("`extra_body` must leave out policy, which `policy` sends")
        return replace(self, extra_body={**self.extra, "policy": policy})

    def body(self, model: str, text: str, max_tokens: int, seed: int) -> dict[str, Any]:
        """The request's body for a prompt."""
        asked = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        body = {"model": model, **asked, "max_tokens": max_tokens, "temperature": self.temperature, "seed": seed}
        body |= {"stream": True}
        body |= {"stream_options": {"include_usage": True}} if self.usage else {}
        return {**body, **({"ignore_eos": True} if self.ignore_eos else {}), **self.extra}


def observe(
    url: str,
    workload: str | Path,
    prompts: str | Path | Sequence[Prompt | str],
    *,
    asking: Asking | None = None,
    options: WorkloadOptions | None = None,
    policy: str | None = None,
    concurrency: int | None = None,
    out: str | Path | None = None,
    stage: str = "observing",
) -> Observed:
    """Drive a server that speaks OpenAI's HTTP with a workload: TTFT, TPOT, gaps of chunks, E2E, tokens, acceptance.

    Ctrl-C stops the run: nothing more is sent, running requests are cut and count as unfinished, and the measurements
    are returned, and written, marked partial.

    Args:
        url: of the server, `http://HOST:PORT`, with or without `/v1`.
        workload: a file of requests, or a generator's text, for times, tags, sessions and lengths of answers.
        prompts: whose texts are sent, those of a request's tag in turn. Lengths of prompts are theirs.
        asking: how requests are sent; None: defaults.
        options: changes to the workload; their seed also orders the prompts, and is sent with requests.
        policy: of `paceline serve`, which each request names; None: requests name none.
        concurrency: of a closed loop, 1 to 4096: running at a time, whatever the workload's times. None: an open loop.
        out: new folder for the run.
        stage: name of its progress.

    Raises:
        ValueError: a bad argument, a server that cannot be reached, or has no such model or policy, or fails a warm-up
            request; one line. Nothing is written then.
    """
    asked, changes = (asking or Asking()).under(policy), options or WorkloadOptions()
    if concurrency is not None:
        check_within("`concurrency`", concurrency, f"[1, {_MOST_CONCURRENCY}]")
    opened = with_options(workload, changes, open_recording(None))
    if is_closed(opened):
        raise ArgumentError(f"`workload` must say when requests arrive, `concurrency` closes the loop, got {workload}")
    texts = prompts_of(prompts)
    arrivals = list(opened)
    if not arrivals:
        raise ArgumentError(f"`workload` must hold a request, {workload} has none")
    for arrival in arrivals:
        PromptsInTurn(texts, 0).next_for(arrival)
    endpoint = Endpoint(url, api_key=asked.api_key, timeout_s=asked.timeout_s)
    model = model_of(endpoint, asked.model, policies=[] if policy is None else [policy])
    run = _Run(endpoint, asked, model, texts, changes.seed, stage)
    named = prompts if isinstance(prompts, str | Path) else counted(len(texts), "text")
    about = {"workload": str(workload), "prompts": str(named), "concurrency": concurrency}
    # Of a reading of its own: events of a session can happen once.
    total = sum(1 for one in opened for _ in requests_of(one))
    found = run.measured(opened.about, arrivals, about, total)
    if out is not None:
        write_observed(found, Path(out))
    return shown_run(found)


class _Run:
    def __init__(
        self, endpoint: Endpoint, asked: Asking, model: str, texts: Sequence[Prompt], seed: int, stage: str
    ) -> None:
        self._endpoint, self._asked, self._model, self._seed, self._stage = endpoint, asked, model, seed, stage
        self._texts = PromptsInTurn(texts, seed)
        self._lock = Lock()

    def measured(
        self, about: WorkloadAbout, arrivals: Sequence[Arrival], named: dict[str, Any], total: int
    ) -> ObservedRun:
        asked = dict[str, Any](
            url=self._endpoint.url,
            model=self._model,
            endpoint=self._asked.path,
            loop="open" if named["concurrency"] is None else "closed",
            warmup=self._asked.warmup,
            seed=self._seed,
            temperature=self._asked.temperature,
            ignore_eos=self._asked.ignore_eos,
            drafter=self._asked.drafter or "",
            extra_body=dict(self._asked.extra),
            **named,
        )
        # Raises for metadata that cannot be written before any load is sent.
        ObservedMeta(**asked, notes=tuple(about.notes), ended_at_ps=0)
        self._warm_up(arrivals[0])
        tokenizer = ServerTokenizer(self._endpoint, self._model) if self._asked.count_tokens else None
        before = counters(self._endpoint)
        with held_interrupts() as interrupts:
            found, ended_at_ps = self._served(arrivals, named["concurrency"], interrupts, total)
            stopped = INTERRUPTED if interrupts.heard() else ""
        after = before if stopped else counters(self._endpoint)
        seen = _counted([*found], tokenizer if not stopped else None)
        acceptance, why = acceptance_between(before, after, seen, self._model)
        if stopped:
            acceptance, why = None, "the run was interrupted"
        meta = ObservedMeta(
            **asked,
            counted_by=_who_counted(found, seen),
            acceptance=acceptance,
            acceptance_unknown=why,
            notes=(*about.notes, *self._notes(found)),
            ended_at_ps=ended_at_ps,
            stopped=stopped,
        )
        return ObservedRun(meta, tuple(seen))

    def _served(
        self, arrivals: Sequence[Arrival], concurrency: int | None, interrupts: Interrupts, total: int
    ) -> tuple[list[Exchange], int]:
        """(requests, when the last of them ended); `total` is how many there will be."""
        with Progress(self._stage, total, unit="requests") as progress:
            clock = ClientClock()
            send: Callable[[Arrival, int], Exchange] = partial(self._send, clock=clock)
            load = LoadGenerator(arrivals, send, clock, interrupts, progress.advance)
            if concurrency is None:
                load.open_loop()
            else:
                load.closed_loop(concurrency)
            if interrupts.heard():
                self._endpoint.cut()
            found = load.ended()
        return found, clock.now_ps()

    def _send(self, arrival: Arrival, due_at_ps: int, *, clock: ClientClock) -> Exchange:
        return exchange(self._endpoint, self._asked.path, self._sent(arrival), due_at_ps, clock)

    def _sent(self, arrival: Arrival) -> Sent:
        with self._lock:
            prompt = self._texts.next_for(arrival)
        body = self._asked.body(self._model, prompt.text, arrival.output_tokens, self._seed)
        return Sent(arrival=arrival, prompt_id=prompt.request_id, text=prompt.text, body=body)

    def _warm_up(self, first: Arrival) -> None:
        """Send requests like the first one; raises ServerError if one fails."""
        for number in range(1, self._asked.warmup + 1):
            found = exchange(self._endpoint, self._asked.path, self._sent(first), 0, ClientClock()).seen
            if found.failed:
                raise ServerError(f"{self._endpoint.url}{self._asked.path}: warm-up request {number}: {found.failed}")

    def _notes(self, found: Sequence[Exchange]) -> list[str]:
        notes = ["prompts are those of the file, of the lengths that they have; the workload's are not used"]
        if repeated := self._texts.num_repeated:
            notes.append(
                f"{counted(repeated, 'request')} had a prompt that was sent before, whose keys and values the server "
                "may have kept"
            )
        if undone := sum(one.seen.finished and not one.done for one in found):
            notes.append(f"{counted(undone, 'answer')} ended with a finish_reason, and without [DONE]")
        for name in sorted({name for one in found for name in one.odd}):
            answers = counted(sum(name in one.odd for one in found), "answer")
            notes.append(
                f"{answers} told {name} that cannot be a count of tokens, such as a negative one, or drafted ones "
                "without accepted ones: it counts as unknown"
            )
        return notes


def _counted(found: Sequence[Exchange], tokenizer: ServerTokenizer | None) -> list[ObservedRequest]:
    if tokenizer is None:
        return [one.seen for one in found]
    return [tokenizer.counted(one) if _uncounted(one.seen) else one.seen for one in found]


def _uncounted(one: ObservedRequest) -> bool:
    return one.finished and (one.prompt_tokens is None or one.output_tokens is None)


def _who_counted(found: Sequence[Exchange], seen: Sequence[ObservedRequest]) -> Literal["usage", "tokenizer", "nobody"]:
    if not any(_uncounted(one.seen) for one in found):
        return BY_USAGE
    return UNCOUNTED if any(map(_uncounted, seen)) else BY_TOKENIZER
