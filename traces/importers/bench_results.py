"""Results of benchmark clients: JSON files of vLLM and SGLang, AIPerf and GuideLLM, and their printed blocks.

The clients of vLLM and SGLang print a block at their end that begins with `==== Serving Benchmark Result ====`: each
line is a name and a number; names about speculation are read, or an error if they are unknown. Rates are per cent.

`vllm-summary` is vLLM's acceptance of each request as a histogram, under the names of `vllm-detailed`. AIPerf's
histogram is sparse; GuideLLM keeps vLLM's `metrics` as they came. A request of these two without either form of them
may have run with speculation or not: it is left out, and counted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..rounds.rounds import RoundsRequest
from .format import Format, described, having
from .importing import Ongoing
from .reading import JSON_BEGINS, Fields, lines_of, placed_lines, read_objects
from .responses import (
    HISTOGRAM,
    Responses,
    alone,
    alone_of,
    by_response,
    check_totals,
    drafted_nothing,
    lists_steps,
    metrics_of,
    never_drafts,
    request_of_steps,
    usage_of,
    within,
)
from .server_logs import depth_of, drafts_trees
from .totals import (
    StatedLog,
    counted_request,
    drafting_share,
    hazards_of_mean,
    hazards_of_rates,
    lengths_of_benchmark,
    note_short_drafts,
    of_histogram,
    settled_window,
)

_TITLE = re.compile(r"\s*=+ *Serving Benchmark Result *=+\s*")
_LINE = re.compile(r"\s*([A-Z][^:]{0,80}): +(\S+)\s*")
_HEADING = re.compile(r"\s*(?:-+[A-Z][^:]*-+|=+|[A-Z][^:]{0,80}:)\s*")
_POSITION = re.compile(r"Position (\d{1,4})")
_SPECULATION = re.compile(r"accept|draft|spec|position", re.IGNORECASE)
_RATES = "spec_decode_per_position_acceptance_rates"
_KEYS = {
    "Successful requests": "completed",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Accept length": "accept_length",
    "Accept rate": "accept_rate",
    "Acceptance length": "spec_decode_acceptance_length",
    "Acceptance rate (%)": "spec_decode_acceptance_rate",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
    "Accepted tokens": "spec_decode_accepted_tokens",
}


def prints(label: str, line: str) -> bool:
    """Whether a line of text has that name."""
    return line.lstrip().startswith(f"{label}:")


def result_of(ongoing: Ongoing, path: Path) -> Fields:
    """The result of a file, or of its block of lines; of several the one that the user chose."""
    for _, line in lines_of(path):
        if JSON_BEGINS.match(line.lstrip()):
            break
        return ongoing.the_one(path, printed_results(path))
    return ongoing.the_one(path, read_objects(path))


def printed_results(path: Path) -> Iterator[Fields]:
    """The blocks of a text, each under the keys of a result file; raises TraceFormatError."""
    values: dict[str, object] = {}
    place = ""
    for here, line in placed_lines(path):
        if _TITLE.fullmatch(line):
            if values:
                yield Fields(place, values)
            values, place = {}, here
            continue
        if values and not line.strip().strip("="):
            yield Fields(place, values)
            values, place = {}, ""
        found = _LINE.fullmatch(line)
        if found is None:
            if place and not _HEADING.fullmatch(line) and _SPECULATION.search(line):
                raise Fields(here, {}).error(
                    "line", "must be a name and a number, as in a block of results", line.strip()
                )
            continue
        if place or found[1] in _KEYS:
            place = place or here
            _take(values, here, found[1], found[2])
    if values:
        yield Fields(place, values)


def _take(values: dict[str, object], place: str, label: str, text: str) -> None:
    fields = Fields(place, {})
    position = _POSITION.fullmatch(label)
    key = _RATES if position else _KEYS.get(label)
    if key is None:
        if _SPECULATION.search(label):
            raise fields.error(label, f"must be one of {', '.join(_KEYS)}, Position N", text)
        return
    try:
        value: float | int = int(text) if text.isascii() and text.isdigit() else float(text)
    except ValueError:
        raise fields.error(label, "must be a number", text) from None
    if position:
        rates = values.setdefault(key, [])
        assert isinstance(rates, list)
        if int(position[1]) != len(rates):
            raise fields.error(label, f"must follow in order, as Position {len(rates)}", text)
        rates.append(value / 100)
    elif key in values:
        raise fields.error(label, "must stand once in a block", text)
    else:
        values[key] = value


_MEAN = "accept_length"


def _read_sglang_bench(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    run = result_of(ongoing, log.path)
    server = within(run, "server_info")  # of newer results: the server's own settings
    told = {} if server is None else server.values
    names = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens", "adaptive")
    settings = {name: str(told[f"speculative_{name}"]) for name in names if f"speculative_{name}" in told}
    depth = depth_of(server or run, settings)
    window = settled_window(ongoing, log.name, run, None, depth, trees=drafts_trees(settings))
    hazards = hazards_of_mean(run, _MEAN, run.rate(_MEAN, most=1e6), window)
    yield from log.requests(lengths_of_benchmark(run), hazards, window=window, either=True)


SGLANG_BENCH = Format(
    **described("sglang-bench"),
    read=_read_sglang_bench,
    sees=having(_MEAN, "total_output_tokens"),
    sees_line=partial(prints, "Accept length"),
)


_COUNTS = frozenset({key for key in _KEYS.values() if key.startswith("spec_decode_")} | {_RATES})
_CUT_SHARE = 0.01  # of tokens: counters are read while the server counts


def _read_vllm_bench(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    run = result_of(ongoing, log.path)
    for key in run.values:
        if key.startswith("spec_decode_") and key not in _COUNTS:
            raise run.error(key, f"must be one of {', '.join(sorted(_COUNTS))}", run.values[key])
    hazards = hazards_of_rates(run, _RATES, run.rates(_RATES, most=1.0))
    lengths = lengths_of_benchmark(run)
    drafts, accepted = (
        run.known_count(key, least=0) for key in ("spec_decode_num_drafts", "spec_decode_accepted_tokens")
    )
    if drafts and accepted is not None:
        _check(run, drafts, accepted)
    if drafts and "spec_decode_draft_tokens" in run:
        drafted = run.count("spec_decode_draft_tokens", least=0)
        note_short_drafts(ongoing, drafted=drafted, drafts=drafts, window=len(hazards))
    drafting = drafting_share(ongoing, lengths, drafts, accepted, hazards, whole=True)
    yield from log.requests(lengths, hazards, window=len(hazards), drafting=drafting)


def _check(run: Fields, drafts: int, accepted: int) -> None:
    """Raise for counts that contradict the rates, or the length and the rate next to them."""
    rates = run.rates(_RATES, most=1.0)
    kept = float(rates.sum()) * drafts
    if abs(kept - accepted) > _CUT_SHARE * max(kept, accepted) + 1:
        rule = f"must be about {kept:.0f}, the sum of the {len(rates)} rates per position of {drafts} drafts"
        raise run.error("spec_decode_accepted_tokens", rule, accepted)
    # `off` by half a token: the counts are whole, what the figures were computed from need not be.
    why = f"1 and {accepted} accepted, {drafts} drafts"
    run.check_mean("spec_decode_acceptance_length", 1 + accepted / drafts, why, off=0.5 / drafts)
    if drafted := run.known_count("spec_decode_draft_tokens", least=0):
        if not accepted <= drafted <= drafts * len(rates):
            rule = f"must lie between the {accepted} accepted and {drafts} drafts of {len(rates)} tokens"
            raise run.error("spec_decode_draft_tokens", rule, drafted)
        why = f"{accepted} accepted of {drafted} drafted tokens, in per cent"
        run.check_mean("spec_decode_acceptance_rate", 100 * accepted / drafted, why, off=50 / drafted)


VLLM_BENCH = Format(
    **described("vllm-bench"),
    read=_read_vllm_bench,
    sees=having(_RATES),
    sees_line=lambda line: any(
        prints(label, line) for label in ("Acceptance length", "Acceptance rate (%)", "Position 0")
    ),
)


def _sees(found: Fields) -> bool:
    metrics = metrics_of(found)
    return metrics is not None and not lists_steps(metrics)


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id = file.name_of(line)
    metrics = metrics_of(line)
    if metrics is None:
        return alone(line, request_id)
    return request_of_histogram(file, metrics, usage_of(line), request_id)


def request_of_histogram(file: Responses, metrics: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response with a histogram of its steps; as `responses.request_of_steps`."""
    counted = of_histogram(
        metrics.counts(HISTOGRAM, least=0),
        num_tokens=usage.known_count("completion_tokens", least=0),
        num_drafted=metrics.known_count("num_draft_tokens", least=0),
        window=metrics.known_count("num_spec_tokens", least=1),
    )
    check_totals(metrics, {counted.num_steps}, counted.num_accepted, None, HISTOGRAM)
    return counted_request(file, usage, metrics, request_id, counted)


VLLM_SUMMARY = Format(**described("vllm-summary"), read=by_response(_parse), sees=_sees, sees_beside=drafted_nothing)


_MOST_WINDOW = 2**16  # tokens: histograms have a place for each
_ACCEPTANCE = "spec_decode_acceptance"
_PLACE = ("response_metrics", "speculative_decoding")
_WITHOUT = "requests without acceptance were left out: the file does not say whether they ran without speculation"
_FAILED = "requests that failed or were cancelled were left out"
_WARMUP = "requests of the warm-up were left out"
_NEEDED = "must stand in some request (run the server with --per-request-spec-decode-metrics)"


def _sees_record(found: Fields) -> bool:
    return (about := within(found, "metadata")) is not None and "benchmark_phase" in about


def _sees_report(found: Fields) -> bool:
    return "metadata" in found and "benchmarks" in found and "guidellm_version" in found.nested("metadata")


def _some(path: Path, field: str, requests: Iterator[RoundsRequest]) -> Iterator[RoundsRequest]:
    """The requests of a file; raises TraceFormatError for none."""
    first = next(requests, None)
    if first is None:
        raise Fields(str(path), {}).error(field, _NEEDED, "none")
    yield first
    yield from requests


def _read_records(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    for path in files:
        yield from _some(path, _ACCEPTANCE, ongoing.each(path, partial(_record, Responses(path, ongoing))))


def _record(file: Responses, line: Fields) -> list[RoundsRequest]:
    """One request; none, which is noted, for one that is left out."""
    about, note = line.nested("metadata"), file.ongoing.findings.note
    if about.text("benchmark_phase", "profiling") != "profiling":
        note(_WARMUP)
        return []
    if "error" in line or about.values.get("was_cancelled"):
        note(_FAILED)
        return []
    if _ACCEPTANCE not in line:
        note(_WITHOUT)
        return []
    found = line.nested(_ACCEPTANCE)
    metrics = line.nested("metrics") if "metrics" in line else Fields(line.place, {})
    counts: dict[str, Any] = {"completion_tokens": found.values.get("completion_tokens")}
    for key in ("usage_prompt_tokens", "input_sequence_length"):  # the server's count, else the client's
        if (metric := within(metrics, key)) is not None:
            counts["prompt_tokens"] = metric.values.get("value")
            break
    name = "x_request_id" if "x_request_id" in about else "session_num"
    request_id = about.text(name)
    file.ongoing.request(about, name, request_id)
    usage = Fields(line.place, counts, found.prefix)
    request = _request(file, _dense(found), usage, request_id)
    if request is not None and name != "session_num" and "session_num" in about:
        request = replace(request, session=about.text("session_num"))
    return file.answered(request)


def _dense(found: Fields) -> Fields:
    """The same with a histogram that has a place for each number of accepted tokens."""
    sparse = found.nested(HISTOGRAM)
    for key in sparse.values:
        if not (key.isascii() and key.isdigit() and len(key) < 6 and int(key) < _MOST_WINDOW):
            raise sparse.error(key, f"must be a number of accepted tokens in [0, {_MOST_WINDOW - 1}]", key)
    histogram = [0] * (max(map(int, sparse.values), default=0) + 1)
    for key in sparse.values:
        histogram[int(key)] += sparse.count(key, least=0)
    return Fields(found.place, {**found.values, HISTOGRAM: histogram}, found.prefix)


def _read_reports(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    for path in files:
        yield from _some(path, ".".join(_PLACE), _of_reports(path, ongoing))


def _of_reports(path: Path, ongoing: Ongoing) -> Iterator[RoundsRequest]:
    file = Responses(path, ongoing)
    for requests in (each.nested("requests") for report in read_objects(path) for each in report.each("benchmarks")):
        for status in ("incomplete", "errored"):
            ongoing.findings.note(_FAILED, len(requests.sequence(status)) if status in requests else 0)
        yield from ongoing.each_of(path, requests.each("successful"), partial(_reported, file))


def _reported(file: Responses, line: Fields) -> list[RoundsRequest]:
    found, told = within(line, *_PLACE), within(line, _PLACE[0])
    if found is None and (told is None or _PLACE[1] not in told.values):
        file.ongoing.findings.note(_WITHOUT)
        return []
    request_id = line.text("request_id")
    file.ongoing.request(line, "request_id", request_id)
    counts = {}
    for key, of in (("prompt_tokens", "input_metrics"), ("completion_tokens", "output_metrics")):
        counted = within(line, of)
        counts[key] = None if counted is None else counted.values.get("text_tokens")
    usage = Fields(line.place, counts, line.prefix)
    if found is None:  # null: vLLM ran the request without speculation
        return file.answered(alone_of(usage, request_id))
    return file.answered(_request(file, found, usage, request_id))


def _request(file: Responses, found: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """Of its steps, where they are listed, else of its histogram."""
    if never_drafts(found):
        return alone_of(usage, request_id)
    detailed = lists_steps(found)
    file.ongoing.findings.forms.add("rounds" if detailed else "histograms")
    read = request_of_steps if detailed else request_of_histogram
    return read(file, found, usage, request_id)


AIPERF = Format(**described("aiperf"), read=_read_records, sees=_sees_record)
GUIDELLM = Format(
    **described("guidellm"),
    read=_read_reports,
    sees=_sees_report,
)
