"""A run of a server as its client saw it: its requests, its folder, and results of serving benchmarks read as one.

A detailed result (`vllm bench serve --save-detailed`, SGLang's `bench_serving`) holds for each request `input_lens` and
`output_lens` (tokens), `ttfts` and `itls` (seconds), `errors` and, of newer vLLM, `start_times`. Without the last,
requests were sent all at once, or one whenever another of `max_concurrency` ended: both clients do so at an infinite
`request_rate`. At a finite rate the times cannot be known, and the result is rejected.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from heapq import heapify, heapreplace
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, JsonValue, model_validator

from ..base.errors import one_line_of, repeated
from ..traces.errors import TraceFormatError
from ..traces.folder import META, StoredFolder, kind_of, read_table
from ..traces.importers.reading import Fields, by_request, read_objects
from ..traces.meta import MOST_SECONDS, TITLE_PATTERN, Record, Version
from ..traces.workloads.arrival import MOST_COUNT, MOST_PS, PS_PER_S
from .log import check_run_folder, new_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """Times are whole picoseconds since the beginning of the run. None: unknown."""

    request_id: str  # unique in the run
    # Of the workload; "" for none.
    tag: str = ""
    slo: str = ""
    prompt_id: str  # of the prompt that was sent
    asked_tokens: int  # most tokens of the answer, >= 1
    due_at_ps: int  # when the workload has it arrive; with a closed loop, when it was sent
    sent_at_ps: int  # >= `due_at_ps`
    # When each chunk with text came, in order: chunks, which may hold any number of tokens.
    outputs_at_ps: tuple[int, ...] = ()
    # When the chunk came that says why the answer ended, or the request failed; None: it did not end.
    ended_at_ps: int | None = None
    # As the server counts them; tokens.
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, that the server had in its cache
    # Drafted and accepted tokens, where the answer itself reports them.
    drafted: int | None = None
    accepted: int | None = None
    finish_reason: str = ""  # "stop", "length", ...; "" where none was given
    failed: str = ""  # what went wrong; "" for nothing

    @property
    def finished(self) -> bool:
        """Whether it was answered to the end."""
        return self.ended_at_ps is not None and not self.failed


Count = Annotated[int, Field(ge=0)]
Title = Annotated[str, Field(pattern=TITLE_PATTERN)]
# Who counted the tokens of a run.
BY_USAGE: Final = "usage"
BY_TOKENIZER: Final = "tokenizer"
UNCOUNTED: Final = "nobody"


class ObservedAcceptance(Record):
    """What a server reports about its speculative decoding during a run. None: not reported."""

    source: Title  # where it was read
    drafts: Count | None = None  # rounds that had a draft
    drafted: Count | None = None  # tokens
    accepted: Count | None = None  # how many of those were accepted; own tokens are not among them
    accepted_by_place: tuple[Count, ...] | None = None  # by position in the draft, from the first on
    # Tokens a round, the target's own among them.
    accept_length: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @property
    def rate(self) -> float | None:
        """Accepted of drafted tokens; None where one is unknown, or nothing was drafted."""
        return None if self.accepted is None or not self.drafted else self.accepted / self.drafted


_BY_ANSWERS = "counts of"


def acceptance_by_answers(requests: Iterable[ObservedRequest]) -> ObservedAcceptance | None:
    """What answers themselves report about drafts; None where none does."""
    answers = [(one.drafted, one.accepted) for one in requests if one.drafted is not None and one.accepted is not None]
    if not answers:
        return None
    drafted, accepted = (sum(counts) for counts in zip(*answers, strict=True))
    return ObservedAcceptance(source=f"{_BY_ANSWERS} {len(answers)} answers", drafted=drafted, accepted=accepted)


class ObservedMeta(Record):
    """`meta.json` of an observed run."""

    format: Literal["paceline-observed"] = "paceline-observed"
    version: Version = 1
    kind: Literal["observed"] = "observed"
    url: Title  # of the server, without any key
    model: Title  # that was asked for
    endpoint: Title  # below the address
    drafter: Title = ""  # of the server, as the user calls it; "" if not given
    # As they were named.
    workload: Title
    prompts: Title
    loop: Literal["open", "closed"]  # "open", by times of arrival, or "closed", by a number of requests at a time
    concurrency: Annotated[int, Field(ge=1)] | None = None  # of a closed loop; None of an open one
    warmup: Count = 0  # requests that were sent before, and are not in the run
    seed: Count = 0  # of the workload, and the order of prompts; sent with each request
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # sent with each request; >= 0
    ignore_eos: bool = False  # whether the server was asked to continue after an end of sequence
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)  # further fields that were sent with each request
    # Where counts of tokens are from: `usage` of the answers, the server's `tokenizer` afterwards, or `nobody`.
    counted_by: Literal["usage", "tokenizer", "nobody"] = "usage"
    acceptance: ObservedAcceptance | None = None  # of speculative decoding; None where it is unknown
    acceptance_unknown: Title = ""  # why it is; "" where it is known
    notes: tuple[Title, ...] = ()  # what a reader of its figures has to know, a line each
    ended_at_ps: Count  # when the last request ended, or the run was stopped; picoseconds
    stopped: Title = ""  # why the run was stopped before all requests had ended; "" if it was not

    @model_validator(mode="after")
    def _loop(self) -> "ObservedMeta":
        if (self.loop == "closed") != (self.concurrency is not None):
            raise ValueError(f"concurrency must be there of a closed loop alone, got {self.concurrency}")
        return self


class ObservedRun:
    """A run with all its requests, in the order in which they were sent."""

    def __init__(self, meta: ObservedMeta, requests: tuple[ObservedRequest, ...]) -> None:
        self.meta, self.requests = meta, requests

    @property
    def finished(self) -> list[ObservedRequest]:
        """Requests that were answered to the end."""
        return [one for one in self.requests if one.finished]

    @property
    def failed(self) -> list[ObservedRequest]:
        """Requests that went wrong."""
        return [one for one in self.requests if one.failed]


REQUESTS = "requests.parquet"
_TEXTS = {"request_id", "tag", "slo", "prompt_id", "finish_reason", "failed"}
_MAY_LACK = {"ended_at_ps", "prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted"}
_OUTPUTS = "outputs_at_ps"


def _field(name: str) -> pa.Field:
    if name == _OUTPUTS:
        return pa.field(name, pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False)
    return pa.field(name, pa.string() if name in _TEXTS else pa.int64(), nullable=name in _MAY_LACK)


SCHEMA = pa.schema([_field(field.name) for field in fields(ObservedRequest)])


_FOLDER = StoredFolder(ObservedMeta, (REQUESTS,), indent=1)


def write_observed(run: ObservedRun, path: Path) -> None:
    """Write the folder of a run.

    Raises:
        ValueError: `path` exists already, or lies inside a recording.
        OSError: naming `path`; nothing written is left.
    """
    with new_folder(path) as part:
        table = pa.Table.from_pylist([asdict(one) for one in run.requests], schema=SCHEMA)
        pq.write_table(table, part / REQUESTS, compression="zstd", store_schema=False)
        _FOLDER.write_meta(part, run.meta)


def is_observed(path: Path) -> bool:
    """Whether a folder's metadata is that of an observed run, or it holds the parts of one."""
    is_one = path.is_dir() and (path / META).is_file() and kind_of(path) == "observed"
    return is_one or bool(_parts(path))


def _parts(path: Path) -> list[Path]:
    """The parts of a run that was written as it went, whose names are numbers; none of any other folder."""
    if (path / META).exists():
        return []
    return sorted(each for each in path.glob("[0-9]*") if each.is_dir() and re.fullmatch("[0-9]{6}", each.name))


def read_observed(path: Path) -> ObservedRun:
    """Read the folder of a run, or the parts of one, which together are a run.

    Raises:
        TraceFormatError: anything in it breaks a rule; the message is one line.
    """
    if parts := _parts(path):
        return _joined(parts, [_read_one(part) for part in parts])
    return _read_one(path)


def _read_one(path: Path) -> ObservedRun:
    check_run_folder(path, "an observed run")
    meta, sha256 = _FOLDER.read_meta(path)
    rows = read_table(path / REQUESTS, sha256[REQUESTS], SCHEMA).to_pylist()
    ids: set[str] = set()
    for number, row in enumerate(rows):
        _check_row(path / REQUESTS, number, row, meta.ended_at_ps, ids)
    requests = tuple(ObservedRequest(**row | {_OUTPUTS: tuple(row[_OUTPUTS])}) for row in rows)
    return ObservedRun(meta, requests)


def _joined(paths: Sequence[Path], runs: Sequence[ObservedRun]) -> ObservedRun:
    """Parts as one run. Counters of a part count from the beginning of the run, so the last part's are the run's."""
    last, requests = runs[-1].meta, [one for run in runs for one in run.requests]
    for path, run in zip(paths, runs, strict=True):
        for field in ("url", "model", "drafter"):
            if (found := getattr(run.meta, field)) != getattr(last, field):
                rule = f"must be that of {paths[-1].name}, {getattr(last, field)!r}: both are parts of one run"
                raise TraceFormatError(path / META, field, rule, found)
    if twice := repeated(one.request_id for one in requests):
        raise TraceFormatError(paths[0].parent, "request_id", "must be in one part", twice[0])
    acceptance, counters = last.acceptance, {run.meta.counted_by for run in runs}
    if acceptance is None or acceptance.source.startswith(_BY_ANSWERS):
        acceptance = acceptance_by_answers(requests)
    changes = {
        "acceptance": acceptance,
        "acceptance_unknown": "" if acceptance is not None else last.acceptance_unknown,
        "counted_by": next(who for who in (UNCOUNTED, BY_TOKENIZER, BY_USAGE) if who in counters),
        "notes": tuple(dict.fromkeys(note for run in runs for note in run.meta.notes)),
        "ended_at_ps": max(run.meta.ended_at_ps for run in runs),
    }
    requests.sort(key=lambda one: (one.sent_at_ps, one.request_id))
    return ObservedRun(last.model_copy(update=changes), tuple(requests))


def _check_row(path: Path, number: int, row: Mapping[str, Any], last_ps: int, known: set[str]) -> None:
    """Times in order, counts in range, an id that is not `known`; raises TraceFormatError for the first broken rule."""

    def require(holds: bool, field: str, rule: str) -> None:
        if not holds:
            raise TraceFormatError(path, field, f"{rule} (row {number})", row[field])

    require(row["request_id"] != "", "request_id", "must not be empty")
    require(1 <= row["asked_tokens"] <= MOST_COUNT, "asked_tokens", f"must be in [1, {MOST_COUNT}]")
    for field in ("prompt_tokens", "output_tokens", "cached_tokens", "drafted", "accepted"):
        least = 1 if field == "prompt_tokens" else 0
        require(row[field] is None or least <= row[field] <= MOST_COUNT, field, f"must be in [{least}, {MOST_COUNT}]")
    times = [row["due_at_ps"], row["sent_at_ps"], *row[_OUTPUTS]]
    require(row["due_at_ps"] >= 0, "due_at_ps", "must be >= 0")
    require(times == sorted(times), _OUTPUTS, "must be in order, after the request was due and sent")
    ended = row["ended_at_ps"]
    require(ended is None or ended >= times[-1], "ended_at_ps", "must not be before the last chunk")
    most = min(last_ps, MOST_PS)
    require(max(times[-1], ended or 0) <= most, "ended_at_ps", f"must not be after the end of the run, {most}")
    require(not row["failed"] or ended is not None, "ended_at_ps", "must be there of a request that failed")
    require(row["request_id"] not in known, "request_id", "must be unique")
    known.add(row["request_id"])


_LISTS = ("input_lens", "output_lens", "ttfts", "itls")
FOLLOWS = (
    "when requests were sent is not in the result: it follows from an infinite request_rate, max_concurrency and the "
    "seconds of answers"
)


def read_run(path: Path) -> ObservedRun:
    """The run in a folder, or in the result file of a benchmark; raises TraceFormatError."""
    return read_bench(path) if path.is_file() else read_observed(path)


def read_bench(path: Path) -> ObservedRun:
    """The requests of a result; raises TraceFormatError without details, or without times of sending."""
    found = list(islice(read_objects(path), 2))
    if len(found) > 1:
        raise TraceFormatError(path, "file", "must hold one result", "several")
    result = Fields(str(path), found[0].values)
    prompts, outputs = (result.counts(key, least=0).tolist() for key in _LISTS[:2])
    lists = by_request(result, _LISTS, ("errors", "start_times"))
    chunks = [_chunks_ps(result, number) for number in range(len(prompts))]
    if max(outputs, default=0) > 1 and all(len(one) == 1 for one in chunks):  # a prefill's token comes alone
        rule = "must have a gap in some answer: none was streamed, so that ttfts are the seconds of whole answers"
        raise result.error("itls", rule, "none")
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
    acceptance = _acceptance(result)
    meta = ObservedMeta(
        url=path.name,
        model=result.text("model_id", default="") or "unknown",
        endpoint="unknown",
        workload=path.name,
        prompts=path.name,
        loop="open" if concurrency is None else "closed",
        concurrency=concurrency,
        acceptance=acceptance,
        acceptance_unknown="" if acceptance is not None else "the result has none",
        notes=note,
        ended_at_ps=max((one.ended_at_ps or 0 for one in requests), default=0),
    )
    return ObservedRun(meta, tuple(requests))


_COUNTS = {
    "drafts": "spec_decode_num_drafts",
    "drafted": "spec_decode_draft_tokens",
    "accepted": "spec_decode_accepted_tokens",
}
_RATES, _LENGTH = "spec_decode_per_position_acceptance_rates", "accept_length"
SINCE_START: Final = "the server's mean since its start"  # of other requests than the run's, too


def _acceptance(result: Fields) -> ObservedAcceptance | None:
    """What a result says of drafts: vLLM's has counters of the run, SGLang's a mean since the server's start."""
    if _COUNTS["drafts"] in result:
        counts = {name: result.count(key, least=0) for name, key in _COUNTS.items()}
        rates = result.rates(_RATES, most=1.0).tolist() if _RATES in result else []
        by_place = tuple(round(rate * counts["drafts"]) for rate in rates) or None
        return ObservedAcceptance(source="counters of the result", accepted_by_place=by_place, **counts)
    if _LENGTH in result:
        length = result.rate(_LENGTH, most=1e6)
        return ObservedAcceptance(source=SINCE_START, accept_length=length)
    return None


def _chunks_ps(result: Fields, number: int) -> list[int]:
    """When the chunks of an answer came, picoseconds after its request."""
    gaps = result.by_turn("itls").sequence(str(number))
    seconds = [result.values["ttfts"][number], *gaps]
    for place, one in enumerate(seconds):
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 <= one <= MOST_SECONDS:
            field = f"itls[{number}][{place - 1}]" if place else f"ttfts[{number}]"
            raise result.error(field, f"must be seconds in [0, {MOST_SECONDS:g}]", one)
    return list(accumulate(round(one * PS_PER_S) for one in seconds))


def _sent_ps(result: Fields, chunks: list[list[int]]) -> tuple[list[int], int | None, tuple[str, ...]]:
    """(when each request was sent, most that ran at a time, notes)."""
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
    found = result.values["start_times"][number]
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) <= MOST_SECONDS * 10:
        raise result.error(f"start_times[{number}]", "must be seconds", found)
    return float(found)
