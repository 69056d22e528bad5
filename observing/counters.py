"""What a server counts of its speculative decoding, read before and after a run.

What it does not tell is unknown, never 0. vLLM's names are those of its `vllm/v1/spec_decode/metrics.py`, SGLang's of
its metrics collector; both as Prometheus gives them.
"""

from collections.abc import Iterable

from ..runs.observed.meta import ObservedAcceptance
from ..runs.observed.request import ObservedRequest
from .endpoint import Endpoint, ServerError
from .prometheus import Sample, samples_of

_VLLM = "vllm:spec_decode_num_"
_DRAFTS, _DRAFTED, _ACCEPTED = (f"{_VLLM}{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens"))
_BY_PLACE = f"{_VLLM}accepted_tokens_per_pos_total"
_SGLANG_LENGTH = "sglang:spec_accept_length"


class Counters:
    """What `/metrics` said at one time. Final.

    Args:
        samples: of the page.
        model: that is asked; series that name another are left out.
        why_none: why there is no page, in words; "" if there is one.
    """

    def __init__(self, samples: Iterable[Sample], model: str, *, why_none: str = "") -> None:
        of_model = [one for one in samples if one.labels.get("model_name", model) == model]
        self.why_none = why_none
        self.sums: dict[tuple[str, str], float] = {}
        for one in of_model:
            if one.name.startswith(_VLLM):
                key = (one.name, one.labels.get("position", ""))
                self.sums[key] = self.sums.get(key, 0.0) + one.value
        lengths = [one.value for one in of_model if one.name == _SGLANG_LENGTH]
        self.accept_length = lengths[0] if len(lengths) == 1 else None


def counters(endpoint: Endpoint, model: str) -> Counters:
    """What the server counts now."""
    try:
        return Counters(samples_of(endpoint.page("/metrics")), model)
    except ServerError as error:
        return Counters((), model, why_none=str(error))


def acceptance_between(
    before: Counters, after: Counters, requests: Iterable[ObservedRequest]
) -> tuple[ObservedAcceptance | None, str]:
    """(acceptance of a run, why it is unknown): by vLLM's counters, llama.cpp's answers or SGLang's gauge."""
    if (_DRAFTS, "") in after.sums:
        return _by_counters(before, after)
    answers = [one for one in requests if one.drafted is not None and one.accepted is not None]
    if answers:
        drafted = sum(one.drafted or 0 for one in answers)
        accepted = sum(one.accepted or 0 for one in answers)
        source = f"timings of {len(answers)} answers (llama.cpp)"
        return ObservedAcceptance(source=source, drafted=drafted, accepted=accepted), ""
    if after.accept_length is not None:
        source = f"{_SGLANG_LENGTH}, a gauge of the server's last interval"
        return ObservedAcceptance(source=source, accept_length=after.accept_length), ""
    why = after.why_none or "/metrics has no counters of speculative decoding"
    return None, f"{why}, and no answer has timings of drafts"


def _by_counters(before: Counters, after: Counters) -> tuple[ObservedAcceptance | None, str]:
    found = {key: value - before.sums.get(key, 0.0) for key, value in after.sums.items()}
    if before.why_none:
        return None, f"before the run: {before.why_none}"
    if any(value < 0 for value in found.values()):
        return None, "counters of /metrics went down during the run: the server was started anew"
    drafts, drafted, accepted = (_whole(found.get((name, ""))) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
    places = sorted((int(place), value) for (name, place), value in found.items() if name == _BY_PLACE and place)
    return ObservedAcceptance(
        source="counters of /metrics (vLLM)",
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        accepted_by_place=tuple(round(value) for _, value in places) or None,
        # Own token: in, as vLLM's mean acceptance length.
        accept_length=None if not drafts or accepted is None else 1 + accepted / drafts,
    ), ""


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
