"""The result of a serving benchmark as an observed run: `vllm bench serve --save-detailed`, SGLang's `bench_serving`.

Its lists tell of each request the tokens of prompt and answer (`input_lens`, `output_lens`), the seconds to the first
token (`ttfts`) and those between chunks (`itls`), its error if it failed (`errors`) and, of newer vLLM, when it was
sent (`start_times`). Without that, requests were sent all at once, or one whenever another of `max_concurrency` ended:
both clients do so at an infinite `request_rate`. At a finite rate the times cannot be known, and the result is refused.
"""

from heapq import heapify, heapreplace
from itertools import accumulate, islice
from pathlib import Path

from ...foreign_text import one_line_of
from ...traces.errors import TraceFormatError
from ...traces.importers.reading.fields import Fields
from ...traces.importers.reading.objects import read_objects
from ...traces.meta import MOST_SECONDS
from ...traces.workloads.exact_seconds import PS_PER_S
from .meta import ObservedMeta, ObservedRun
from .request import ObservedRequest
from .store import read_observed

_LISTS = ("input_lens", "output_lens", "ttfts", "itls")
FOLLOWS = (
    "when requests were sent is not in the result: it follows from an infinite request_rate, max_concurrency and the "
    "seconds of answers"
)


def read_run(path: Path) -> ObservedRun:
    """The run in a folder, or in the result file of a benchmark; raises TraceFormatError."""
    return read_bench(path) if path.is_file() else read_observed(path)


def read_bench(path: Path) -> ObservedRun:
    """The requests of a result.

    Raises:
        TraceFormatError: a file that is no such result, lacks details, or does not tell when requests were sent.
    """
    found = list(islice(read_objects(path), 2))
    if len(found) > 1:
        raise TraceFormatError(path, "file", "must hold one result", "several")
    result = Fields(str(path), found[0].values)
    prompts, outputs = (result.counts(key, least=0).tolist() for key in _LISTS[:2])
    lists = {key: result.sequence(key) for key in (*_LISTS, "errors", "start_times") if key in result or key in _LISTS}
    for key, values in lists.items():
        if len(values) != len(prompts):
            raise result.error(key, f"must hold one entry for each of the {len(prompts)} requests", len(values))
    chunks = [_chunks_ps(result, number) for number in range(len(prompts))]
    errors = lists.get("errors", [""] * len(prompts))
    sent, concurrency, note = _sent_ps(result, chunks)
    requests = [
        ObservedRequest(
            request_id=str(number + 1),
            prompt_id=str(number + 1),
            asked_tokens=max(tokens, 1),
            due_at_ps=begun,
            sent_at_ps=begun,
            outputs_at_ps=tuple(begun + after for after in chunks[number]) if tokens else (),
            ended_at_ps=begun + chunks[number][-1],
            prompt_tokens=prompts[number],
            output_tokens=tokens,
            failed=one_line_of(str(errors[number]), 300) if errors[number] else "",
        )
        for number, (begun, tokens) in enumerate(zip(sent, outputs, strict=True))
    ]
    requests.sort(key=lambda one: one.sent_at_ps)
    meta = ObservedMeta(
        url=path.name,
        model=result.text("model_id", default="") or "unknown",
        endpoint="unknown",
        workload=path.name,
        prompts=path.name,
        loop="open" if concurrency is None else "closed",
        concurrency=concurrency,
        acceptance_unknown="see `trace import`, which reads the acceptance of a result",
        notes=note,
        ended_at_ps=max((one.ended_at_ps or 0 for one in requests), default=0),
    )
    return ObservedRun(meta, tuple(requests))


def _chunks_ps(result: Fields, number: int) -> list[int]:
    """When the chunks of an answer came, picoseconds after it was asked for."""
    gaps = result.by_turn("itls").sequence(str(number))
    seconds = [result.values["ttfts"][number], *gaps]
    for place, one in enumerate(seconds):
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 <= one <= MOST_SECONDS:
            field = f"itls[{number}][{place - 1}]" if place else f"ttfts[{number}]"
            raise result.error(field, f"must be seconds in [0, {MOST_SECONDS:g}]", one)
    return list(accumulate(round(one * PS_PER_S) for one in seconds))


def _sent_ps(result: Fields, chunks: list[list[int]]) -> tuple[list[int], int | None, tuple[str, ...]]:
    """(when each request was sent, how many were under way at most, what to note)."""
    concurrency = result.known_count("max_concurrency", least=1)
    if "start_times" in result:
        starts = [_moment(result, number) for number in range(len(chunks))]
        first = min(starts, default=0.0)
        return [round((start - first) * PS_PER_S) for start in starts], concurrency, ()
    if result.values.get("request_rate") not in (float("inf"), "inf"):
        rule = "must be there, where request_rate is finite: nothing else says when requests were sent"
        raise result.error("start_times", rule, "nothing")
    if concurrency is None:
        return [0] * len(chunks), None, (FOLLOWS,)
    free = [0] * concurrency
    heapify(free)
    sent = []
    for answer in chunks:
        sent.append(free[0])
        heapreplace(free, free[0] + answer[-1])
    return sent, concurrency, (FOLLOWS,)


def _moment(result: Fields, number: int) -> float:
    """Seconds of the client's clock."""
    found = result.values["start_times"][number]
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= MOST_SECONDS * 10:
        raise result.error(f"start_times[{number}]", "must be seconds", found)
    return float(found)
