"""vLLM's acceptance of each request as a histogram (`--per-request-spec-decode-metrics summary`).

One response an object, as for `vllm-detailed`, whose `metrics.speculative_decoding` has an `acceptance_histogram` and
no steps; `num_spec_tokens` is the window, `num_draft_tokens` what was drafted. A response whose
`speculative_decoding` is null is one of the target alone.
"""

from ...rounds.rounds import RoundsRequest
from ..format import Format, described
from ..reading.fields import Fields
from ..responses import Responses, by_response, usage_of
from ..vllm_responses import ACCEPTED, HISTOGRAM, alone, check_totals, is_plain, metrics_of
from .counted import counted_request, of_histogram


def _sees(found: Fields) -> bool:
    metrics = metrics_of(found)
    return metrics is not None and HISTOGRAM in metrics and ACCEPTED not in metrics


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id = file.name_of(line)
    metrics = metrics_of(line)
    if metrics is None:
        return alone(line, request_id)
    return request_of_histogram(file, metrics, usage_of(line), request_id)


def request_of_histogram(file: Responses, metrics: Fields, usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response with a histogram of its steps; as `steps.vllm_detailed.request_of_steps`."""
    counted = of_histogram(
        metrics.counts(HISTOGRAM, least=0),
        num_tokens=usage.known_count("completion_tokens", least=0),
        num_drafted=metrics.known_count("num_draft_tokens", least=0),
        window=metrics.known_count("num_spec_tokens", least=1),
    )
    check_totals(metrics, {counted.num_steps}, counted.num_accepted, None, HISTOGRAM)
    return counted_request(file, usage, metrics, request_id, counted)


VLLM_SUMMARY = Format(**described("vllm-summary"), read=by_response(_parse), sees=_sees, sees_beside=is_plain)
