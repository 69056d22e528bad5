"""Where vLLM's responses keep what speculation did, whatever their format, and rows of the target alone.

A response has `metrics.speculative_decoding`; that object may also stand alone on its line, or as
`speculative_decoding` or `spec_decode_metrics`; drafts of the change kept it in the first choice as
`speculative_decoding_stats`. Null in its place says that the request ran without speculation.
"""

from ..rounds.rounds import TARGET_ALONE, RoundsRequest
from .reading.fields import Fields
from .responses import first_choice, usage_of, within

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


def alone(line: Fields, request_id: str) -> RoundsRequest | None:
    """The request of a response without speculation; None if its answer has no token.

    Raises:
        TraceFormatError: the response does not say that it ran without, or not how long it is.
    """
    if not is_plain(line):
        rule = f"must be there, under metrics.speculative_decoding or alone, with {ACCEPTED} or {HISTOGRAM}"
        raise line.error("speculative_decoding", f"{rule}; null if the request ran without", "nothing")
    return alone_of(usage_of(line), request_id)


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
