"""Metrics pages of servers (`curl .../metrics`), one or several in the order of time, as a recording.

Of several pages, in files or one after another in a file, counts are those between the first and the last; of one,
those since the server started. Rates by position come from vLLM's, llama.cpp's and newer TensorRT-LLM's counters. Older
TensorRT-LLM counts drafted and accepted tokens only, and SGLang steps and tokens: they give a mean, as their gauges do
where counters are missing. Requests are those that the page counts; without them the load that is stated does.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ...errors import TraceFormatError
from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.engine_metrics import LLAMACPP, SGLANG, TRTLLM, VLLM, Engine, Floats, Speculation, page_of
from ..reading.fields import Fields
from ..reading.lines import text_lines
from ..reading.metrics_page import Page, Scrapes
from .stated import (
    Lengths,
    StatedLog,
    drafting_share,
    even_lengths,
    hazards_of_mean,
    hazards_of_rates,
    note_short_drafts,
)

_PAGES = "counts are those between the first and the last of {} pages of metrics"
_MODELS = "counts of {} models are added: {}"
_UNANSWERED = (
    "{:,} requests were aborted or failed: they are no answers, but their tokens count among those of the others"
)
_GAUGE = "the mean is a gauge of {}, of the server's last interval only"
_CUT_SHARE = 0.01  # of accepted tokens that positions may miss: pages are made while servers count


def _metrics_format(name: str, engine: Engine) -> Format:
    line = re.compile(rf"{re.escape(engine.prefix)}[a-zA-Z0-9_:]+(\{{| +[0-9+-])")
    return Format(**described(name), read=_reader(engine), sees_line=lambda text: line.match(text) is not None)


def _reader(engine: Engine) -> Callable[[Sequence[Path], Ongoing], Iterator[RoundsRequest]]:
    def read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
        log = StatedLog(files, ongoing, several=True)
        pages = [_page(path, engine) for path in files]
        scrapes = Scrapes(pages)
        found, fields = Speculation(scrapes, engine), Fields(str(log.path), {})
        _remark(ongoing, scrapes, pages, found)
        lengths = _lengths(fields, found)
        near = sorted({name for page in pages for name in page.others})
        rates = _rates(ongoing, fields, engine, found, near)
        if rates is not None:
            hazards = hazards_of_rates(fields, f"{engine.accepted_by_place}_total", rates)
            drafting = drafting_share(ongoing, lengths, found.drafts, found.accepted)
            yield from log.requests(fields, lengths, hazards, window=len(hazards), drafting=drafting)
            return
        window = ongoing.drafters.window_of(log.name, fields, found.depth)
        key, length = _mean(ongoing, fields, engine, found, near, window)
        ongoing.findings.forms.add("mean")
        yield from log.requests(fields, lengths, hazards_of_mean(fields, key, length, window), window=window)

    return read


def _page(path: Path, engine: Engine) -> Page:
    return page_of(((f"{path}: line {number}", line) for number, line in text_lines(path)), [engine])


def _remark(ongoing: Ongoing, scrapes: Scrapes, pages: Sequence[Page], found: Speculation) -> None:
    if len(scrapes) > 1:
        ongoing.findings.remark(_PAGES.format(len(scrapes)))
    models = sorted({model for page in pages for model in page.models})
    if len(models) > 1:
        ongoing.findings.remark(_MODELS.format(len(models), ", ".join(models)))
    if found.unanswered:
        ongoing.findings.remark(_UNANSWERED.format(round(found.unanswered)))


def _lengths(fields: Fields, found: Speculation) -> Lengths | None:
    """The requests that the pages count, None if they count none."""
    requests, tokens, prompts = (round(count or 0.0) for count in (found.requests, found.tokens, found.prompts))
    if not requests or not tokens:
        return None
    return even_lengths(fields, requests, tokens, prompts)


def _rates(ongoing: Ongoing, fields: Fields, engine: Engine, found: Speculation, near: Sequence[str]) -> Floats | None:
    """`[W]` shares of drafts that kept each position; None of an engine whose pages have no positions."""
    kept, drafted = (found.by_place(name) for name in (engine.accepted_by_place, engine.drafted_by_place))
    if engine.drafted_by_place:
        if not drafted.any():
            return None
        # Drafts that had no token at a position say nothing of it.
        had = np.flatnonzero(drafted)
        padded = np.pad(kept, (0, max(len(drafted) - len(kept), 0)))
        over = np.flatnonzero(padded > (1 + _CUT_SHARE) * np.pad(drafted, (0, len(padded) - len(drafted))))
        if len(over):
            place = int(over[0])
            most = drafted[place] if place < len(drafted) else 0
            rule = f"must be at most the {most:g} drafted there"
            raise fields.error(f"{engine.accepted_by_place}_total, position {place}", rule, float(padded[place]))
        kept = padded[: had[-1] + 1]
        return np.divide(kept, drafted[: had[-1] + 1], out=np.zeros(had[-1] + 1), where=drafted[: had[-1] + 1] > 0)
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
    note_short_drafts(ongoing, drafted=told or 0.0, drafts=drafts, window=len(kept))
    return kept / drafts


def _mean(
    ongoing: Ongoing, fields: Fields, engine: Engine, found: Speculation, near: Sequence[str], window: int
) -> tuple[str, float]:
    """(what tells it, tokens that a step gives on average, the target's own among them).

    Raises:
        TraceFormatError: nothing tells it, which names what is near.
    """
    length = found.counted_length
    if length is not None:
        return f"{engine.tokens}_total", length
    drafted, accepted = found.drafted, found.accepted
    if drafted and accepted is not None:  # steps drafted the whole window each, as far as totals tell
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
