"""vLLM's acceptance of each request as a histogram (`--per-request-spec-decode-metrics summary`).

Exact: of each request, how many steps kept 0, 1, 2, ... drafted tokens, and how many drafted nothing.

Unknown: in which order the steps came: it is drawn (--seed), every order equally likely, so that each request takes as
many steps of the target as it took, and everything that a round says counts as modelled. Where steps drafted less than
the window, which ones did is drawn too, as even as it can be. Seconds; token ids.

One response an object, as for `vllm-detailed`, whose `metrics.speculative_decoding` has an `acceptance_histogram` and
no steps; `num_spec_tokens` is the window, `num_draft_tokens` what was drafted. A response whose
`speculative_decoding` is null is one of the target alone.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from ..responses import RequestNames, completion_tokens
from ..vllm_responses import ACCEPTED, HISTOGRAM, alone, metrics_of
from .counted import counted_request, of_histogram

NOTES = (
    "Exact: of each request, how many steps kept 0, 1, 2, ... drafted tokens, and how many drafted nothing.",
    "Unknown: in which order the steps came: it is drawn (--seed), every order equally likely, so that each request "
    "takes as many steps of the target as it took, and everything that a round says counts as modelled. Where steps "
    "drafted less than the window, which ones did is drawn too, as even as it can be. Seconds; token ids.",
)
KEYS = ("metrics.speculative_decoding.acceptance_histogram",)


def sees(found: Fields) -> bool:
    """Whether an object could be of this format."""
    metrics = metrics_of(found)
    return metrics is not None and HISTOGRAM in metrics and ACCEPTED not in metrics


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """One request per response; raises TraceFormatError."""
    for path in files:
        names = RequestNames(path, learned)
        yield from learned.each(path, partial(_requests, path=path, names=names, learned=learned))


def _requests(line: Fields, path: Path, names: RequestNames, learned: Learned) -> Iterator[RoundsRequest]:
    request_id = names.of(line)
    metrics = metrics_of(line)
    if metrics is None:
        yield from alone(line, request_id, learned)
        return
    name = learned.drafter(DRAFTER, path, prefilled=True, settled=True)
    counted = of_histogram(
        metrics.counts(HISTOGRAM, least=0),
        num_tokens=completion_tokens(line),
        num_drafted=metrics.known_count("num_draft_tokens", least=0),
        window=metrics.known_count("num_spec_tokens", least=1),
    )
    yield from counted_request(learned, name, line, metrics, request_id, counted)
