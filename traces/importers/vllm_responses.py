"""Where vLLM's responses keep what speculation did, whatever their format, and rows of the target alone.

A response has `metrics.speculative_decoding`; that object may also stand alone on its line, or as
`speculative_decoding` or `spec_decode_metrics`; drafts of the change kept it in the first choice as
`speculative_decoding_stats`. Null in its place says that the request ran without speculation.
"""

import numpy as np
from numpy.typing import NDArray

from ..rounds.rounds import TARGET_ALONE, RoundsRequest
from .reading.agreement import check_equal, check_mean
from .reading.fields import Fields
from .responses import SHARED, first_choice, usage_of, within

ACCEPTED, HISTOGRAM = "per_step_accepted", "acceptance_histogram"
_PLACES = (("metrics", "speculative_decoding"), ("speculative_decoding",), ("spec_decode_metrics",))


def metrics_of(found: Fields) -> Fields | None:
    """The object that holds the steps or the histogram, wherever the response keeps it."""
    places = [found, *(within(found, *path) for path in _PLACES)]
    places.append(within(first_choice(found), "speculative_decoding_stats"))
    return next((place for place in places if place is not None and (ACCEPTED in place or HISTOGRAM in place)), None)


def is_plain(found: Fields) -> bool:
    """Whether a response says that it ran without speculation."""
    if metrics_of(found) is not None:
        return False
    for *around, last in _PLACES:
        place = within(found, *around) if around else found
        if place is not None and last in place.values and place.values[last] is None:
            return True
    return False


def check_steps(metrics: Fields, accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
    """Refuse a histogram or counts that the listed steps contradict.

    Args:
        metrics: the object that holds them.
        accepted: `[R]` tokens that the listed steps kept.
        drafted: `[R]` tokens that they drafted; those that drafted nothing may be counted or not.
    """
    if HISTOGRAM in metrics:
        told, counted = metrics.counts(HISTOGRAM, least=0), np.bincount(accepted)
        length = max(len(told), len(counted))
        more = np.pad(counted, (0, length - len(counted))) - np.pad(told, (0, length - len(told)))
        wrong = [place for place in np.flatnonzero(more).tolist() if place or more[0] != np.sum(drafted == 0)]
        if wrong:
            many = int(counted[wrong[0]]) if wrong[0] < len(counted) else 0
            rule = f"must be {many}, as many steps of {ACCEPTED} kept {wrong[0]} tokens"
            raise metrics.error(f"{HISTOGRAM}[{wrong[0]}]", rule, many - int(more[wrong[0]]))
    check_totals(metrics, {len(accepted), int(np.sum(drafted > 0))}, int(accepted.sum()), int(drafted.sum()), ACCEPTED)


def check_totals(metrics: Fields, steps: set[int], accepted: int, drafted: int | None, source: str) -> None:
    """Refuse totals, a mean or a rate that contradict what steps add up to.

    Args:
        metrics: the object that holds them.
        steps: how many there are, by all readings.
        accepted: tokens.
        drafted: tokens, None if nothing but their total says it.
        source: what all of it was counted from.
    """
    counts = tuple(sorted(steps, reverse=True))
    check_equal(metrics, "num_spec_steps", counts, f"as many steps as {source} has")
    check_equal(metrics, "num_accepted_draft_tokens", (accepted,), f"the tokens that {source} adds up to")
    if drafted is None:
        drafted = metrics.known_count("num_draft_tokens", least=0)
    else:
        check_equal(metrics, "num_draft_tokens", (drafted,), "the sum of per_step_drafted")
    if drafted:
        why = f"{accepted} accepted of {drafted} drafted tokens"
        check_mean(metrics, "draft_acceptance_rate", accepted / drafted, why)
    if len(counts) == 1 and counts[0]:
        why = f"1 and {accepted} accepted tokens in {counts[0]} steps"
        check_mean(metrics, "mean_acceptance_length", 1 + accepted / counts[0], why)


def alone(line: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response without speculation; None if its answer has no token.

    Raises:
        TraceFormatError: the response does not say that it ran without, or not how long it is.
    """
    if not is_plain(line):
        rule = f"must be there, under metrics.speculative_decoding or alone, with {ACCEPTED} or {HISTOGRAM}"
        raise line.error("speculative_decoding", f"{rule}; null if the request ran without", "nothing")
    usage = usage_of(line)
    if SHARED in line.values and "completion_tokens" not in usage:
        rule = "must be of one answer (n = 1): vLLM says nothing of the drafts of several, nor how long each of them is"
        raise line.error("choices", rule, f"{line.values[SHARED]} choices and speculative_decoding: null")
    return alone_of(usage, request_id)


def alone_of(usage: Fields, request_id: str) -> RoundsRequest | None:
    """The request without speculation whose tokens `usage` counts; raises TraceFormatError if it counts no answer."""
    tokens = usage.known_count("completion_tokens", least=0)
    if tokens is None:
        raise usage.error("completion_tokens", "must be there, the request ran without speculation", "nothing")
    if not tokens:
        return None
    prompt_tokens = usage.count("prompt_tokens", least=0, default=0)
    return RoundsRequest(
        request_id=request_id, prompt_tokens=prompt_tokens, num_tokens={TARGET_ALONE: tokens}, rounds={}
    )
