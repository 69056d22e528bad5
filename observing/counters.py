"""What a server counts of its speculative decoding, read before and after a run.

What it does not tell is unknown, never 0, and nothing that it says can spoil a run that was measured: a page that
cannot be read is a reason why acceptance is unknown. Names and arithmetic are those of imported pages
(`traces.importers.reading`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..foreign_text import one_line_of
from ..runs.observed.meta import ObservedAcceptance
from ..runs.observed.request import ObservedRequest
from ..traces.errors import TraceFormatError
from ..traces.importers.reading.engine_metrics import ENGINES, Engine, Speculation, engine_of, page_of
from ..traces.importers.reading.metrics_page import Page, Scrapes
from .endpoint import Endpoint, ServerError

_LONGEST = 400  # characters of a reason
_PATHS = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's, whose first is none of Prometheus


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """A page of metrics at one time.

    Attributes:
        text: of the page.
        path: below the server's address.
        why_none: why there is no page, in words; "" if there is one.
    """

    text: str = ""
    path: str = _PATHS[0]
    why_none: str = ""

    def page(self, when: str) -> Page:
        """What it says of known metrics; raises TraceFormatError, with its line.

        Args:
            when: the page was read, in words, for errors.
        """
        lines = enumerate(self.text.splitlines(), start=1)
        return page_of((f"{self.path} {when} the run, line {number}", line) for number, line in lines)

    @property
    def any_known(self) -> bool:
        """Whether a line may be one of an engine's metrics."""
        prefixes = tuple(engine.prefix for engine in ENGINES)
        return any(line.startswith(prefixes) for line in self.text.splitlines())


def counters(endpoint: Endpoint) -> Counters:
    """What the server counts now."""
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
    """(acceptance of a run, why it is unknown): by counters, else llama.cpp's answers, else a gauge.

    Args:
        before: the run.
        after: it.
        requests: of the run.
        model: that was asked; series that name another are left out.
    """
    found, why = _by_pages(before, after, model)
    if found is not None and found.drafted is not None:
        return found, ""
    answers = [one for one in requests if one.drafted is not None and one.accepted is not None]
    if answers:
        drafted = sum(one.drafted or 0 for one in answers)
        accepted = sum(one.accepted or 0 for one in answers)
        source = f"timings of {len(answers)} answers (llama.cpp)"
        return ObservedAcceptance(source=source, drafted=drafted, accepted=accepted), ""
    return found, "" if found is not None else one_line_of(f"{why}, and no answer has timings of drafts", _LONGEST)


def _by_pages(before: Counters, after: Counters, model: str) -> tuple[ObservedAcceptance | None, str]:
    """(acceptance by pages of metrics, why they do not tell it)."""
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
    """Why a page has no counters of a model."""
    of_all = engine_of(Scrapes([page]))
    if of_all is not None:
        speaking = [one for one in page.samples if one.name in of_all.of_speculation]
        models = sorted({one.labels["model_name"] for one in speaking if "model_name" in one.labels})
        return f"{path} has counters of model {', '.join(models)}, asked was {model}"
    near = f" (but {', '.join(sorted(page.others))})" if page.others else ""
    return f"{path} has no counters of speculative decoding{near}"


def _told(path: str, found: Speculation, engine: Engine) -> tuple[ObservedAcceptance | None, str]:
    """(acceptance, why it is unknown) by the metrics of an engine."""
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
            # Own token: in, as vLLM's mean acceptance length.
            accept_length=1 + accepted / drafts if drafts else None,
        ), ""
    length, source = found.counted_length, f"counters of {path} ({engine.name})"
    if length is None:
        length, source = found.shown_length, f"{engine.length}, a gauge of the server's last interval"
    if length is None:
        return None, f"{path} has metrics of {engine.name}, and none of them tells that anything was drafted"
    if length < 1:
        return None, f"{path} tells of {length:.3g} tokens a step, fewer than one"
    return ObservedAcceptance(source=source, accept_length=length), ""
