"""Metrics pages of servers (`curl .../metrics`), one or several in order of time, as a recording.

Lines of known metrics are read by the parser of `prometheus_client`; others may have any form. Series with equal labels
are one counter at several times, so its count is its last value less its first; one that is missing at first began at
0. Of several pages, in files or one after another in a file, counts are those between the first and the last; of one,
those since the server started.

Counts by position of the draft give rates. Older TensorRT-LLM counts drafted and accepted tokens only, and SGLang
verifications and tokens of answers: they give a mean, as gauges of the last interval do where counters are missing.
Names: `vllm/v1/spec_decode/metrics.py` (vLLM 0.33), `observability/metrics_collector.py` (SGLang 0.5.23),
`tensorrt_llm/metrics/collector.py` (1.4.0rc1), llama.cpp's `tools/server/server-task.cpp`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from ..errors import TraceFormatError
from ..rounds.rounds import TREES, RoundsRequest
from .format import Format, described
from .importing import MOST_WINDOW, Ongoing
from .reading import Fields, lines_of, placed_lines, read_objects
from .totals import (
    StatedLog,
    check_depth,
    drafting_share,
    even_lengths,
    hazard_of_steps,
    hazards_of_mean,
    hazards_of_rates,
    note_running,
    note_short_drafts,
)

_NAME = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)")
_LONGEST = 10_000  # characters of a line; those of servers have some hundred
_ANEW = "the server was restarted in between, or the pages are not in the order of time; import those of one run"

_STARTED = "process_start_time_seconds"  # of Prometheus's client, with all that it counts

Key = tuple[str, tuple[tuple[str, str], ...]]


class Sample(NamedTuple):
    """One series at one time."""

    place: str  # page and line, as errors name them
    name: str  # of the metric, without `_total`
    labels: Mapping[str, str]  # by name
    value: float  # finite, >= 0

    @property
    def key(self) -> Key:
        """The identity of a series over time."""
        return self.name, tuple(sorted(self.labels.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The known metrics of a page."""

    samples: tuple[Sample, ...] = ()  # in order
    others: frozenset[str] = field(default_factory=frozenset)  # similar but unknown names of metrics

    def of_model(self, model: str) -> "Page":
        """The page without the series that name another model."""
        kept = tuple(one for one in self.samples if one.labels.get("model_name", model) == model)
        return Page(samples=kept, others=self.others)

    @property
    def models(self) -> list[str]:
        """The models that its series name."""
        return sorted({one.labels["model_name"] for one in self.samples if "model_name" in one.labels})


def read_page(lines: Iterable[tuple[str, str]], names: frozenset[str], near: Sequence[str] = ()) -> Page:
    """The samples of metrics of these names, without `_total`; `_created` lines are read with them.

    Raises TraceFormatError for a line of a known metric that is no sample, or whose value is no finite number >= 0.
    `near` has the beginnings of names to report if they are unknown.
    """
    samples, others = [], set()
    for place, line in lines:
        found = _NAME.match(line)
        if found is None:
            continue
        name = found[1].removesuffix("_total")
        if name.removesuffix("_created") in names:
            samples.append(_sample(place, name, line))
        elif name.startswith(tuple(near)) and not name.endswith(("_created", "_bucket", "_sum", "_count")):
            others.add(found[1])
    return Page(samples=tuple(samples), others=frozenset(others))


class Scrapes:
    """The pages of one server in order of time, at least one; one with a repeated series is several."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._scrapes: list[dict[Key, Sample]] = []
        for page in pages:
            self._scrapes.append({})
            for sample in page.samples:
                if sample.key in self._scrapes[-1]:
                    self._scrapes.append({})
                self._scrapes[-1][sample.key] = sample

    def __len__(self) -> int:
        return len(self._scrapes)

    def __contains__(self, name: str) -> bool:
        return any(sample.name == name for sample in self._last.values())

    @property
    def _last(self) -> dict[Key, Sample]:
        return self._scrapes[-1]

    def gauges(self, name: str) -> list[Sample]:
        """The series of a metric in the last page."""
        return [sample for sample in self._last.values() if sample.name == name]

    def over_time(self, name: str) -> list[float]:
        """The values of a gauge in all pages."""
        return [sample.value for scrape in self._scrapes for sample in scrape.values() if sample.name == name]

    def counted(self, name: str, *, by: str = "", summed: frozenset[str] = frozenset()) -> dict[str, float]:
        """The increase of a counter between the first page and the last, or with one page since the server started.

        It is by the values of the label `by`, "" for series without it; empty if the last page lacks the metric. Series
        that differ in the labels `summed` are added. Raises TraceFormatError for a counter that went down or vanished,
        or series that differ in another label.
        """
        self._refuse_restart()
        series = list(dict.fromkeys(key for scrape in self._scrapes for key in scrape if key[0] == name))
        for key in series:
            if key not in self._last:
                before = next(scrape[key] for scrape in reversed(self._scrapes) if key in scrape)
                rule = f"must be there in the last page as in {before.place}: {_ANEW}"
                raise TraceFormatError(before.place, _series(key), rule, "nothing")
        counts: dict[str, float] = {}
        for key in series:
            value = dict(key[1]).get(by, "")
            counts[value] = counts.get(value, 0.0) + self._increase(key)
        self._refuse_differing(series, {by, *summed})
        return counts

    def _increase(self, key: Key) -> float:
        seen = [scrape[key] for scrape in self._scrapes if key in scrape]
        for before, after in pairwise(seen):
            if after.value < before.value:
                rule = f"must be at least the {before.value:.15g} of {before.place}: {_ANEW}"
                raise TraceFormatError(after.place, _series(key), rule, after.value)
        created = (f"{key[0]}_created", key[1])
        began = [scrape[created] for scrape in self._scrapes if created in scrape]
        for before, after in pairwise(began):
            if after.value != before.value:
                rule = f"must be the {before.value:.15g} of {before.place}: {_ANEW}"
                raise TraceFormatError(after.place, _series(created), rule, after.value)
        first = self._scrapes[0].get(key) if len(self._scrapes) > 1 else None
        return seen[-1].value - (0.0 if first is None else first.value)

    def _refuse_restart(self) -> None:
        first: dict[Key, Sample] = {}
        for sample in (sample for scrape in self._scrapes for sample in scrape.values() if sample.name == _STARTED):
            if sample.value != (before := first.setdefault(sample.key, sample)).value:
                rule = f"must be the {before.value:.15g} of {before.place}: {_ANEW}"
                raise TraceFormatError(sample.place, _series(sample.key), rule, sample.value)

    def _refuse_differing(self, series: list[Key], may_differ: set[str]) -> None:
        labels = [dict(key[1]) for key in series]
        for name in sorted({name for one in labels for name in one} - may_differ):
            values = sorted({one.get(name, "") for one in labels})
            if len(values) > 1:
                allowed = ", ".join(sorted(may_differ - {""})) or "no label"
                rule = f"must be series that differ in {allowed} only; others are not added: take those of one {name}"
                told = ", ".join([*(value or "none" for value in values[:4]), *(["..."] if len(values) > 4 else [])])
                raise TraceFormatError(self._last[series[0]].place, f"{series[0][0]}.{name}", rule, told)


def _sample(place: str, name: str, line: str) -> Sample:
    if len(line) > _LONGEST:
        raise TraceFormatError(place, name, f"must be a line of at most {_LONGEST} characters", len(line))
    try:
        (family,) = text_string_to_metric_families(f"{line.strip()}\n")
        (found,) = family.samples
        value = float(found.value)
    except (ValueError, IndexError, OverflowError):
        raise TraceFormatError(place, name, "must be of the form name{labels} value", line.strip()) from None
    if not isfinite(value) or value < 0:
        raise TraceFormatError(place, name, "must be a finite number >= 0", value)
    return Sample(place, name, found.labels, value)


def _series(key: Key) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in key[1])
    return f"{key[0]}{{{labels}}}" if labels else key[0]


_REASON = "finished_reason"
_NO_ANSWERS = frozenset({"abort", "error", "cancelled", "timeout"})

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Names of an engine's metrics, without `_total`; "" for one that it does not have."""

    name: str  # for messages
    prefix: str  # beginning of all its metrics' names
    near: str  # beginning of its names for speculative decoding
    drafts: str = ""  # rounds that drafted
    drafted: str = ""  # tokens
    accepted: str = ""
    accepted_by_place: str = ""  # the same by position of the draft, in the label `place`
    drafted_by_place: str = ""
    place: str = "position"
    verified: str = ""  # steps of the target that verified a draft
    length: str = ""  # gauge of tokens per step, the target's own included
    depth: str = ""  # gauge of the tokens on the deepest path of a draft, not of a whole tree
    cap: str = ""  # gauge of the tokens that a step verifies where drafts are cut before, 0 where none is
    block: str = ""  # gauge of the tokens that a step verifies, of a chain, tree or block, the last one before it too
    aborted: str = ""  # requests that were broken off, where the label of `requests` does not say it
    requests: str = ""  # answers, and tokens of them and of their prompts
    tokens: str = ""
    prompts: str = ""
    running: str = ""  # gauge of requests that run
    whole: bool = False  # whether every version counts the last step of an answer with what its end cuts
    summed: frozenset[str] = frozenset({"engine", "model_name"})  # labels whose series are added up

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        named = (self.drafts, self.drafted, self.accepted, self.accepted_by_place, self.drafted_by_place)
        others = (self.verified, self.length, self.depth, self.cap, self.block)
        return frozenset({*named, *others, *self.of_requests} - {""})

    @property
    def of_requests(self) -> frozenset[str]:
        """Names for all that was answered, with drafts or without."""
        return frozenset({self.requests, self.tokens, self.prompts, self.aborted, self.running})

    @property
    def of_speculation(self) -> frozenset[str]:
        """Names for speculative decoding."""
        return self.names - self.of_requests


def _like_vllm(name: str, prefix: str) -> Engine:
    return Engine(
        name=name,
        prefix=prefix,
        near=f"{prefix}spec_decode_",
        drafts=f"{prefix}spec_decode_num_drafts",
        drafted=f"{prefix}spec_decode_num_draft_tokens",
        accepted=f"{prefix}spec_decode_num_accepted_tokens",
        accepted_by_place=f"{prefix}spec_decode_num_accepted_tokens_per_pos",
        whole=True,
    )


VLLM = replace(
    _like_vllm("vLLM", "vllm:"),
    requests="vllm:request_success",
    tokens="vllm:generation_tokens",
    prompts="vllm:prompt_tokens",
    running="vllm:num_requests_running",
)
LLAMACPP = replace(_like_vllm("llama.cpp", "llamacpp:"), running="llamacpp:requests_processing")
TRTLLM = Engine(
    name="TensorRT-LLM",
    prefix="trtllm_",
    near="trtllm_spec_decode_",
    drafted="trtllm_spec_decode_num_draft_tokens",
    accepted="trtllm_spec_decode_num_accepted_tokens",
    accepted_by_place="trtllm_spec_decode_accepted_tokens",
    drafted_by_place="trtllm_spec_decode_drafted_tokens",
    place="token_position",
    length="trtllm_spec_decode_acceptance_length",
    requests="trtllm_request_success",
    tokens="trtllm_generation_tokens",
    prompts="trtllm_prompt_tokens",
    summed=frozenset({"engine_type", "model_name"}),
)
SGLANG = Engine(
    name="SGLang",
    prefix="sglang:",
    near="sglang:spec_",
    verified="sglang:spec_verify_calls",
    length="sglang:spec_accept_length",
    depth="sglang:spec_num_steps",
    cap="sglang:spec_cap_length",
    block="sglang:spec_num_draft_tokens",
    aborted="sglang:num_aborted_requests",
    requests="sglang:num_requests",
    tokens="sglang:generation_tokens",
    prompts="sglang:prompt_tokens",
    running="sglang:num_running_reqs",
    summed=frozenset({"engine", "model_name", "is_streaming"}),
)
ENGINES = (VLLM, LLAMACPP, TRTLLM, SGLANG)


def page_of(lines: Iterable[tuple[str, str]], engines: Sequence[Engine] = ENGINES) -> Page:
    """A page read by the names of some engines; raises TraceFormatError as `read_page`."""
    names = frozenset({_STARTED}).union(*(engine.names for engine in engines))
    return read_page(lines, names, [engine.near for engine in engines])


def engine_of(scrapes: Scrapes) -> Engine | None:
    """The engine whose metrics of speculative decoding the last page has, None if it has none."""
    return next((engine for engine in ENGINES if any(name in scrapes for name in engine.of_speculation)), None)


class Speculation:
    """Speculative decoding by the pages of a server, with the names of an engine."""

    def __init__(self, scrapes: Scrapes, engine: Engine) -> None:
        self._scrapes, self._engine = scrapes, engine

    def total(self, name: str) -> float | None:
        """The increase of a counter, None where the page lacks it; raises as `Scrapes.counted`."""
        found = self._scrapes.counted(name, summed=self._engine.summed) if name else {}
        return sum(found.values()) if found else None

    @property
    def drafts(self) -> float | None:
        """Rounds that drafted: as counted, or as many as drafted a first token."""
        by_place = self.by_place(self._engine.drafted_by_place)
        return float(by_place[0]) if len(by_place) else self.total(self._engine.drafts)

    @property
    def drafted(self) -> float | None:
        """Drafted tokens."""
        by_place = self.by_place(self._engine.drafted_by_place)
        return float(by_place.sum()) if len(by_place) else self.total(self._engine.drafted)

    @property
    def accepted(self) -> float | None:
        """Accepted tokens among these."""
        if not len(self.by_place(self._engine.drafted_by_place)):
            return self.total(self._engine.accepted)
        return float(self.by_place(self._engine.accepted_by_place).sum())

    def by_place(self, name: str) -> Floats:
        """`[W]` increase of a counter by position of the draft, empty where the page lacks it."""
        if not name:
            return np.zeros(0)
        found = self._scrapes.counted(name, by=self._engine.place, summed=self._engine.summed)
        for text in found:
            if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) < MOST_WINDOW):
                place = next(one.place for one in self._scrapes.gauges(name))
                rule = f"must be a whole number below {MOST_WINDOW}"
                raise TraceFormatError(place, f"{name}.{self._engine.place}", rule, text)
        places = {int(text): count for text, count in found.items()}
        return np.array([places.get(place, 0.0) for place in range(max(places, default=-1) + 1)], np.float64)

    @property
    def requests(self) -> tuple[float | None, float]:
        """(answered requests, None where no counter has them; aborted or failed ones)."""
        name = self._engine.requests
        found = self._scrapes.counted(name, by=_REASON, summed=self._engine.summed) if name else {}
        ended = sum(count for reason, count in found.items() if reason in _NO_ANSWERS)
        return (sum(found.values()) - ended if found else None), ended

    @property
    def aborted(self) -> float:
        """Requests that were broken off, some of which may be among the answered ones."""
        name = self._engine.aborted
        labels = [one.labels for one in self._scrapes.gauges(name)] if name else []
        return sum(self._scrapes.counted(name, summed=frozenset().union(*labels)).values()) if labels else 0.0

    @property
    def counted_length(self) -> float | None:
        """Tokens per verification, its own included, by counters; None where there are none.

        The prefill writes the first token of each answer.
        """
        steps, tokens, (requests, _) = self.total(self._engine.verified), self.total(self._engine.tokens), self.requests
        return None if not steps or tokens is None or requests is None else (tokens - requests) / steps

    @property
    def shown_length(self) -> float | None:
        """The same by a gauge, of some last interval; None where there is none, or nothing was verified."""
        shown = self._scrapes.gauges(self._engine.length) if self._engine.length else []
        values = sorted({one.value for one in shown})
        if len(values) > 1:
            texts = [f"{one.value:.4g}" for one in sorted(shown, key=lambda one: one.value)]
            many = {2: "two", 3: "three", 4: "four"}.get(len(texts), str(len(texts)))
            listed = f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) < 5 else f"{texts[0]} to {texts[-1]}"
            told = f"{many} gauges, {listed}"
            raise TraceFormatError(shown[0].place, self._engine.length, "must be one gauge", told)
        return values[0] if values and values[0] > 0 else None

    @property
    def depth(self) -> int | None:
        """Tokens on the deepest path of a draft by present gauges, None where there are none or they differ.

        Nor does one step of more than a token say it: it may be a tree of depth 1, or a block (SGLang's DFLASH).
        """
        name = self._engine.depth
        gauges = self._scrapes.gauges(name) if name else []
        if gauges and gauges[0].value > MOST_WINDOW:
            raise TraceFormatError(gauges[0].place, name, f"must be at most {MOST_WINDOW}", gauges[0].value)
        values = {one.value for one in gauges}
        if len(values) != 1 or (values == {1.0} and self.block > 2):
            return None
        return round(values.pop()) or None

    @property
    def block(self) -> float:
        """Most tokens that a step verifies, by present gauges; 0 without any."""
        return max((one.value for one in self._scrapes.gauges(self._engine.block)), default=0.0)


_PAGES = "counts are those between the first and the last of {} pages of metrics"
_MODELS = "counts of {} models are added: {}"
_UNANSWERED = (
    "{:,} requests were aborted or failed: they are no answers, but their tokens count among those of the others"
)
_ABORTED = "{:,} requests were aborted: those that had begun count as answers, with the tokens that they had"
_GAUGE = "the mean is a gauge of {}, of the server's last interval only"
_CUT_TWICE = (
    "answers of one length cannot take so few steps, so theirs differ: in replay their ends cut once more what they "
    "cut of the mean already"
)
_OTHER_DEPTH = "{} is {}, the window is {} as stated"
_OF_ENDED = "of {:,.0f} accepted tokens, requests that had ended have {:,.0f}: positions are counted of these alone"
_SHORT = (
    "drafts were {:.2f} tokens long on average, of {}: each is drawn as a whole one and keeps {:.2f} on average, where "
    "those of the log kept {:.2f}"
)
_CUT_SHARE = 0.01  # of accepted tokens that positions may lack: servers count while pages are made


def _metrics_format(name: str, engine: Engine) -> Format:
    line = re.compile(rf"{re.escape(engine.prefix)}[a-zA-Z0-9_:]+(\{{| +[0-9+-])")
    return Format(
        **described(name),
        read=_reader(engine),
        sees=lambda found: any(line.match(f"{name} 0") for name in _queried(found)),
        sees_line=lambda text: line.match(text) is not None,
    )


def _queried(found: Fields) -> Iterator[str]:
    """Names of the metrics in an object, if it is the result of a query of Prometheus."""
    data = found.values.get("data")
    results = data.get("result") if isinstance(data, dict) else None
    for one in results if isinstance(results, list) else ():
        if isinstance(one, dict) and isinstance(one.get("metric"), dict):
            yield str(one["metric"].get("__name__"))


def query_pages(files: Sequence[Path], engine: Engine) -> list[Page]:
    """Results of queries of Prometheus's HTTP API as pages, in order of time.

    Queries of one scrape may have been asked at several instants: a page ends where a series comes again.
    """
    found = []
    for one in (one for path in files for result in read_objects(path) for one in result.nested("data").each("result")):
        metric = one.nested("metric")
        labels = ",".join(f"{key}={json.dumps(metric.text(key))}" for key in metric.values if key != "__name__")
        series = f"{metric.text('__name__')}{{{labels}}}"
        for pair in one.sequence("values") if "values" in one else [one.sequence("value")]:
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int | float):
                raise one.error("values", "must be pairs of a time and a value", pair)
            found.append((pair[0], (f"{one.place}, time {pair[0]:.0f}", f"{series} {pair[1]}")))
    pages = [Page()]
    for _, lines in groupby(sorted(found, key=itemgetter(0)), key=itemgetter(0)):
        page, last = page_of((line for _, line in lines), [engine]), pages[-1]
        if {one.key for one in page.samples}.isdisjoint(one.key for one in last.samples):
            pages[-1] = Page(samples=last.samples + page.samples, others=last.others | page.others)
        else:
            pages.append(page)
    return pages


def _reader(engine: Engine) -> Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]:
    def read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
        log = StatedLog(files, ongoing, several=True)
        queries = [path for path in files if next(lines_of(path), (0, b""))[1].lstrip().startswith(b"{")]
        if queries and len(queries) < len(files):
            raise TraceFormatError(queries[0], "file", "must be a page of metrics, as others are", "a query's result")
        pages = query_pages(queries, engine) if queries else [page_of(placed_lines(path), [engine]) for path in files]
        scrapes, fields = Scrapes(pages), log.fields
        found = Speculation(scrapes, engine)
        answered, unanswered = found.requests
        _remark(ongoing, scrapes, pages, unanswered, found.aborted)
        note_running(ongoing, scrapes.over_time(engine.running), "pages")
        counts = (answered, found.total(engine.tokens), found.total(engine.prompts))
        requests, tokens, prompts = (round(count or 0.0) for count in counts)
        lengths = even_lengths(fields, requests, tokens, prompts) if requests and tokens else None
        near = sorted({name for page in pages for name in page.others})
        rates = _rates(ongoing, log, engine, found, near)
        if rates is not None:
            hazards = hazards_of_rates(fields, f"{engine.accepted_by_place}_total", rates)
            whole = engine.whole
            drafting = drafting_share(ongoing, lengths, found.drafts, found.accepted, hazards, whole=whole)
            yield from log.requests(lengths, hazards, window=len(hazards), drafting=drafting, either=not whole)
            return
        _check_gauges(fields, scrapes, engine)
        window, depth = ongoing.drafters.window_of(log.name, fields, found.depth), found.depth
        if depth not in (None, window):
            ongoing.findings.remark(_OTHER_DEPTH.format(engine.depth, depth, window))
        if found.block > window + 1:
            ongoing.findings.remark(TREES.format(log.name))
        key, length = _mean(ongoing, fields, engine, found, near, window)
        ongoing.findings.forms.add("mean")
        hazards, steps = hazards_of_mean(fields, key, length, window), found.total(engine.verified)
        of_answers = found.counted_length is not None
        if of_answers and lengths is not None and steps:  # their ends are cut already
            answers = np.array([tokens - 1 for _, tokens in lengths if tokens])
            if (hazard := hazard_of_steps(answers, steps, window)) is not None:
                hazards = (hazard,)
            else:
                ongoing.findings.remark(_CUT_TWICE)
        yield from log.requests(lengths, hazards, window=window, either=not of_answers)

    return read


def _remark(ongoing: Ongoing, scrapes: Scrapes, pages: Sequence[Page], unanswered: float, aborted: float) -> None:
    if len(scrapes) > 1:
        ongoing.findings.remark(_PAGES.format(len(scrapes)))
    models = sorted({model for page in pages for model in page.models})
    if len(models) > 1:
        ongoing.findings.remark(_MODELS.format(len(models), ", ".join(models)))
    if unanswered:
        ongoing.findings.remark(_UNANSWERED.format(round(unanswered)))
    if aborted:
        ongoing.findings.remark(_ABORTED.format(round(aborted)))


def _rates(ongoing: Ongoing, log: StatedLog, engine: Engine, found: Speculation, near: Sequence[str]) -> Floats | None:
    """`[W]` shares of drafts that kept each position; None of an engine whose pages have no positions."""
    fields = log.fields
    kept, drafted = (found.by_place(name) for name in (engine.accepted_by_place, engine.drafted_by_place))
    if engine.drafted_by_place:
        if not drafted.any():
            return None
        # Drafts without a token at a position do not count there.
        told, places = found.total(engine.accepted), max(len(kept), len(drafted))
        if told is not None and (of_ended := float(kept.sum())) < (1 - _CUT_SHARE) * told:
            ongoing.findings.remark(_OF_ENDED.format(told, of_ended))  # the total counts each iteration
        elif told is not None and of_ended > (1 + _CUT_SHARE) * told:
            rule = f"must add up to at most the {told:g} of {engine.accepted}_total"
            raise fields.error(f"{engine.accepted_by_place}_total", rule, of_ended)
        kept, drafted = (np.pad(one, (0, places - len(one))) for one in (kept, drafted))
        over = np.flatnonzero(kept > (1 + _CUT_SHARE) * drafted)
        if len(over):
            place = int(over[0])
            rule = f"must be at most the {drafted[place]:g} drafted there"
            raise fields.error(f"{engine.accepted_by_place}_total, position {place}", rule, float(kept[place]))
        depth = _depth_of_places(ongoing, log, kept, drafted)
        kept, drafted = kept[:depth], drafted[:depth]
        rates = np.divide(kept, drafted, out=np.zeros(depth), where=drafted > 0)
        if (drafts := drafted[0]) and drafted.sum() < drafts * depth:
            lengths = (drafted.sum() / drafts, depth, rates.sum(), kept.sum() / drafts)
            ongoing.findings.remark(_SHORT.format(*lengths))
        return rates
    if not engine.drafts:
        return None
    drafts, accepted = found.drafts or 0.0, found.accepted
    if drafts <= 0:
        raise fields.error(f"{engine.drafts}_total", "must count a draft", ", ".join(near) or drafts)
    most = float(kept.max(initial=0.0))
    if most > drafts:
        raise fields.error(f"{engine.accepted_by_place}_total", f"must be at most the {drafts:g} drafts", most)
    if accepted is not None and abs(float(kept.sum()) - accepted) > _CUT_SHARE * accepted:
        rule = f"must add up to the {accepted:g} of {engine.accepted}_total: positions are missing"
        raise fields.error(f"{engine.accepted_by_place}_total", rule, float(kept.sum()))
    told = found.drafted
    if told is not None and accepted is not None and accepted > (1 + _CUT_SHARE) * told:
        raise fields.error(
            f"{engine.accepted}_total", f"must be at most the {told:g} of {engine.drafted}_total", accepted
        )
    if told is not None:
        if not (1 - _CUT_SHARE) * drafts <= told <= (1 + _CUT_SHARE) * drafts * len(kept):
            rule = (
                f"must be in [{drafts:g}, {drafts * len(kept):g}], tokens of {drafts:g} drafts of {len(kept)} positions"
            )
            raise fields.error(f"{engine.drafted}_total", rule, told)
        note_short_drafts(ongoing, drafted=told, drafts=drafts, window=len(kept))
    return kept / drafts


def _check_gauges(fields: Fields, scrapes: Scrapes, engine: Engine) -> None:
    """Raise for gauges by which a mean is not that of one window."""
    depths = sorted({depth for depth in scrapes.over_time(engine.depth) if depth})  # 0 before the first step
    if len(depths) > 1:
        rule = "must be the same in all pages and ranks: a mean over changing depths fits no window"
        raise fields.error(engine.depth, rule, ", ".join(f"{depth:g}" for depth in depths))
    if cap := max(scrapes.over_time(engine.cap), default=0.0):
        rule = "must be 0: drafts were cut before they were checked, so that lengths tell no agreement"
        raise fields.error(engine.cap, rule, cap)


def _depth_of_places(ongoing: Ongoing, log: StatedLog, kept: Floats, drafted: Floats) -> int:
    """Tokens on the deepest path of a draft: of a tree every node has a place, of which deep ones are never kept."""
    places, deepest = (int(np.flatnonzero(one)[-1]) + 1 if one.any() else 0 for one in (drafted, kept))
    check_depth(ongoing, log.name, log.fields, deepest=deepest, longest=places)
    stated = ongoing.options.windows.get(log.name, places)
    if stated < places:
        ongoing.findings.remark(TREES.format(log.name))
    return stated


def _mean(
    ongoing: Ongoing, fields: Fields, engine: Engine, found: Speculation, near: Sequence[str], window: int
) -> tuple[str, float]:
    """(its source, mean tokens per step, the target's own included); raises where there is no source."""
    length = found.counted_length
    if length is not None:
        return f"{engine.tokens}_total", length
    if found.total(engine.verified) == 0:
        raise fields.error(f"{engine.verified}_total", "must count a verification", 0)
    drafted, accepted = found.drafted, found.accepted
    if drafted and accepted is not None:  # assumes that each step drafted the whole window
        return f"{engine.accepted}_total", 1.0 + window * accepted / drafted
    length = found.shown_length
    if length is None:
        rule = f"must tell of speculative decoding, by {engine.verified or engine.drafted}_total or {engine.length}"
        raise TraceFormatError(fields.place, "metrics", rule, ", ".join(near) or "nothing that does")
    ongoing.findings.remark(_GAUGE.format(engine.length))
    return engine.length, length


VLLM_METRICS = _metrics_format("vllm-metrics", VLLM)
SGLANG_METRICS = _metrics_format("sglang-metrics", SGLANG)
TRTLLM_METRICS = _metrics_format("trtllm-metrics", TRTLLM)
LLAMACPP_METRICS = _metrics_format("llamacpp-metrics", LLAMACPP)
