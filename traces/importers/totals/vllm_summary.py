"""vLLM's acceptance of each request as a histogram (`--per-request-spec-decode-metrics summary`).

One response an object, as for `vllm-detailed`, whose `metrics.speculative_decoding` has an `acceptance_histogram` and
no steps; `num_spec_tokens` is the window, `num_draft_tokens` what was drafted. A response whose
`speculative_decoding` is null is one of the target alone.
"""

from collections.abc import Iterator

from ...rounds.rounds import RoundsRequest
from ..format import Format
from ..reading.fields import Fields
from ..responses import Responses, by_response, completion_tokens
from ..vllm_responses import ACCEPTED, HISTOGRAM, alone, metrics_of
from .counted import counted_request, of_histogram


def _sees(found: Fields) -> bool:
    metrics = metrics_of(found)
    return metrics is not None and HISTOGRAM in metrics and ACCEPTED not in metrics


def _parse(file: Responses, line: Fields) -> Iterator[RoundsRequest]:
    request_id = file.name_of(line)
    metrics = metrics_of(line)
    if metrics is None:
        yield from alone(file, line, request_id)
        return
    counted = of_histogram(
        metrics.counts(HISTOGRAM, least=0),
        num_tokens=completion_tokens(line),
        num_drafted=metrics.known_count("num_draft_tokens", least=0),
        window=metrics.known_count("num_spec_tokens", least=1),
    )
    yield from counted_request(file, line, metrics, request_id, counted)


VLLM_SUMMARY = Format(
    name="vllm-summary",
    words="vLLM per-request acceptance histograms",
    keys=("metrics.speculative_decoding.acceptance_histogram",),
    exact="of each request, how many steps kept 0, 1, 2, ... drafted tokens, and how many drafted nothing.",
    unknown="in which order the steps came: it is drawn (--seed), every order equally likely, so that each request "
    "takes as many steps of the target as it took, and everything that a round says counts as modelled. Where steps "
    "drafted less than the window, which ones did is drawn too, as even as it can be. Seconds; token ids.",
    read=by_response(_parse),
    sees=_sees,
    form="histograms",
    by_line=True,
)
