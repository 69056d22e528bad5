"""What AIPerf and GuideLLM keep of vLLM's per-request speculative metrics, beside what they measured themselves.

AIPerf 0.13 writes `profile_export.jsonl` with `--export-level records`: an object a request, `metadata`, `metrics` and
`spec_decode_acceptance` (its `SpecDecodeAcceptanceRecord`), whose histogram is sparse. GuideLLM 0.8 writes one report:
`benchmarks`, each with `requests.successful`, each with `response_metrics`, vLLM's `metrics` as they came. Both hold
steps where the server ran with `--per-request-spec-decode-metrics detailed`, else a histogram. Neither says of a
request without them whether it ran without speculation: it is left out, and counted.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..rounds.rounds import RoundsRequest
from .format import Format, described
from .ongoing import Ongoing
from .reading.fields import Fields
from .reading.objects import read_objects
from .responses import Responses, within
from .steps.vllm_detailed import request_of_steps
from .totals.vllm_summary import request_of_histogram
from .vllm_responses import ACCEPTED, HISTOGRAM, alone_of

_MOST_WINDOW = 2**16  # a drafted token has a place in a histogram: more is none
_ACCEPTANCE, _RECORD = "spec_decode_acceptance", ("metadata", "metrics")
_REPORT = ("metadata", "benchmarks")
_PLACE = ("response_metrics", "speculative_decoding")
_WITHOUT = "requests without acceptance were left out: the file does not say whether they ran without speculation"
_FAILED = "requests that failed or were cancelled were left out"
_WARMUP = "requests of the warm-up were left out"
_NEEDED = "must stand in some request (run the server with --per-request-spec-decode-metrics)"


def _sees_record(found: Fields) -> bool:
    return within(found, "metadata") is not None and "benchmark_phase" in found.nested("metadata")


def _sees_report(found: Fields) -> bool:
    return all(key in found for key in _REPORT) and "guidellm_version" in found.nested("metadata")


def _read_records(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """The requests of AIPerf's profiling phase."""
    for path in files:
        file, some = Responses(path, ongoing), False
        for request in ongoing.each(path, partial(_record, file)):
            some = True
            yield request
        if not some:
            raise Fields(str(path), {}).error(_ACCEPTANCE, _NEEDED, "none")


def _record(file: Responses, line: Fields) -> list[RoundsRequest]:
    """One request; none where nothing of it counts, which is noted."""
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
    return file.answered(_request(file, _dense(found), usage, request_id))


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
    """The successful requests of all benchmarks of GuideLLM's reports."""
    for path in files:
        file, some = Responses(path, ongoing), False
        for report in read_objects(path):
            for benchmark in report.each("benchmarks"):
                requests = benchmark.nested("requests")
                for status in ("incomplete", "errored"):
                    ongoing.findings.note(_FAILED, len(requests.sequence(status)) if status in requests else 0)
                for request in ongoing.each_of(path, requests.each("successful"), partial(_reported, file)):
                    some = True
                    yield request
        if not some:
            raise Fields(str(path), {}).error(".".join(_PLACE), _NEEDED, "none")


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
    if found is None:  # null, which vLLM says of a request that ran without speculation
        return file.answered(alone_of(usage, request_id))
    return file.answered(_request(file, found, usage, request_id))


def _request(file: Responses, found: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """Of its steps, where they are listed, else of its histogram."""
    detailed = ACCEPTED in found
    file.ongoing.findings.forms.add("rounds" if detailed else "histograms")
    read = request_of_steps if detailed else request_of_histogram
    return read(file, found, usage, request_id)


AIPERF = Format(**described("aiperf"), read=_read_records, sees=_sees_record)
GUIDELLM = Format(**described("guidellm"), read=_read_reports, sees=_sees_report)
