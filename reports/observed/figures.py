"""The figures of an observed run; docs/observing.md defines each.

Over finished requests, but for gaps of chunks, which are of all. Those that nobody told the tokens of are in no figure
that needs them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...runs.observed.meta import ObservedRun
from ...runs.observed.request import ObservedRequest
from ...traces.workloads.exact_seconds import PS_PER_S
from ..serving.latencies import spread_of
from ..summary import PERCENTILES, Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFigures:
    """Seconds and counts; None where nothing can be said.

    Attributes:
        requests: that were sent: finished, failed and unfinished ones.
        uncounted: finished ones whose tokens are unknown.
        prompt_tokens, output_tokens: of finished requests; None where those of any are unknown.
        duration_s: from the first request until the last that finished had ended.
        requests_per_s: finished ones.
        output_tokens_per_s: of finished ones.
        ttft_s: from sending to the first chunk with text.
        tpot_s: from there to the end, by tokens after the first; of requests of two tokens or more.
        itl_s: between two chunks with text.
        e2e_s: from sending to the end of the answer.
        late_s: longest time from when a request was due to when it was sent.
        finish_reasons: finished requests by reason; "" where none was said.
        failures: requests by what went wrong.
    """

    requests: int
    finished: int
    failed: int
    unfinished: int
    uncounted: int
    prompt_tokens: int | None
    output_tokens: int | None
    duration_s: float
    requests_per_s: float | None
    output_tokens_per_s: float | None
    ttft_s: Spread | None
    tpot_s: Spread | None
    itl_s: Spread | None
    e2e_s: Spread | None
    late_s: float
    finish_reasons: dict[str, int]
    failures: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        return asdict(self)


def observed_figures(run: ObservedRun) -> ObservedFigures:
    """The figures of a run."""
    finished, failed = run.finished, run.failed
    duration_s = _duration_s(run.requests, finished)
    output = _total([one.output_tokens for one in finished])
    return ObservedFigures(
        requests=len(run.requests),
        finished=len(finished),
        failed=len(failed),
        unfinished=len(run.requests) - len(finished) - len(failed),
        uncounted=sum(one.output_tokens is None or one.prompt_tokens is None for one in finished),
        prompt_tokens=_total([one.prompt_tokens for one in finished]),
        output_tokens=output,
        duration_s=duration_s,
        requests_per_s=len(finished) / duration_s if duration_s else None,
        output_tokens_per_s=None if output is None or not duration_s else output / duration_s,
        ttft_s=_spread([one.outputs_at_ps[0] - one.sent_at_ps for one in finished if one.outputs_at_ps]),
        tpot_s=_spread([tpot for one in finished if (tpot := tpot_ps(one)) is not None]),
        itl_s=_spread([gap for one in run.requests for gap in np.diff(one.outputs_at_ps).tolist()]),
        e2e_s=_spread([one.ended_at_ps - one.sent_at_ps for one in finished if one.ended_at_ps is not None]),
        late_s=max((one.sent_at_ps - one.due_at_ps for one in run.requests), default=0) / PS_PER_S,
        finish_reasons=_counts([one.finish_reason for one in finished]),
        failures={
            reason: [one.request_id for one in failed if one.failed == reason]
            for reason in dict.fromkeys(one.failed for one in failed)
        },
    )


def tpot_ps(one: ObservedRequest) -> float | None:
    """Picoseconds for each token after the first; None of fewer than two tokens, or of nobody knows how many."""
    if one.ended_at_ps is None or not one.outputs_at_ps or one.output_tokens is None or one.output_tokens < 2:
        return None
    return (one.ended_at_ps - one.outputs_at_ps[0]) / (one.output_tokens - 1)


def _duration_s(requests: Sequence[ObservedRequest], finished: Sequence[ObservedRequest]) -> float:
    began = min((one.sent_at_ps for one in requests), default=0)
    return max((one.ended_at_ps - began for one in finished if one.ended_at_ps is not None), default=0) / PS_PER_S


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _spread(times_ps: Sequence[float]) -> Spread | None:
    if not times_ps:
        return None
    seconds = np.array(times_ps, dtype=np.float64) / PS_PER_S
    return spread_of(float(seconds.mean()), np.percentile(seconds, PERCENTILES).tolist())


def _counts(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}
