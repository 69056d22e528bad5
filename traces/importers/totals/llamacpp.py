"""What llama.cpp counts of each request in its responses: tokens, drafts and seconds.

Its totals do not say how many steps there were, but every step emits what it accepted and one token of the target's
own, and the prefill emits the first: steps = tokens - 1 - accepted. Where drafts of a window would not fit into so few
steps, there were more of them and the last one was cut by the end of the answer. The window is `--spec-draft-n-max` of
the server: responses do not say it.

A response has `timings`: `predicted_n` tokens of the answer, `prompt_n` and `cache_n` of the prompt, `draft_n`,
`draft_n_accepted`, `prompt_ms`, `predicted_ms`. A request without a field of drafts or acceptance is one of the target
alone; with fields of other names it is refused: they may be those of another version. The server's log says the same
in lines: `llamacpp_log.py`.
"""

import re

from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described
from ..reading.agreement import check_equal
from ..reading.fields import Fields
from ..responses import Responses, by_response, usage_of, within
from .counted import Counted, draw_rounds

_LONGEST_MS = 1e12  # of a prompt or an answer: thirty years are none
_OF_DRAFTS = re.compile("draft|accept|spec", re.IGNORECASE)


def _sees(found: Fields) -> bool:
    timings = within(found, "timings")
    return timings is not None and "predicted_n" in timings


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id = file.name_of(line)
    timings = line.nested("timings")
    tokens = (timings.count("predicted_n", least=0),)
    for place, key in ((usage_of(line), "completion_tokens"), (line, "tokens_predicted")):
        check_equal(place, key, tokens, "by timings.predicted_n")
    return request_of(file, timings, request_id)


def request_of(
    file: Responses, timings: Fields, request_id: str, *, window: int | None = None, drafts: int | None = None
) -> RoundsRequest | None:
    """The request that timings tell of, of the target alone if nothing was drafted; None for an answer of no token.

    Args:
        file: of the request.
        timings: under the names that they have in responses.
        request_id: of the request.
        window: most tokens drafted in a step, None if nothing says it.
        drafts: steps that drafted, None if nothing says it, so that all are taken to.

    Raises:
        TraceFormatError: counts that cannot be.
    """
    tokens = timings.count("predicted_n", least=0)
    if not tokens:
        return None
    prompt_tokens = sum(timings.count(key, least=0, default=0) for key in ("prompt_n", "cache_n"))
    drafted = timings.known_count("draft_n", least=0)
    accepted = 0 if drafted is None else timings.count("draft_n_accepted", least=0)
    prompt_ms, answer_ms = (
        timings.rate(key, most=_LONGEST_MS) if key in timings else 0.0 for key in ("prompt_ms", "predicted_ms")
    )
    method, rounds = TARGET_ALONE, {}
    if drafted is None:
        _refuse_other_words(timings)
    else:
        method = file.drafter()
        if accepted > drafted:
            raise timings.error("draft_n_accepted", f"must be at most draft_n, {drafted}", accepted)
        window = file.ongoing.drafters.window_of(method, timings, window)
        steps = max(tokens - 1 - accepted, -(-drafted // window)) if drafts is None else drafts
        counted = Counted(num_tokens=tokens, num_steps=steps, num_accepted=accepted, num_drafted=drafted, window=window)
        rounds = {method: draw_rounds(file.ongoing, method, timings, request_id, counted)}
    measured = prompt_ms > 0 and answer_ms > 0
    return RoundsRequest(
        request_id=request_id,
        prompt_tokens=prompt_tokens,
        num_tokens={method: tokens},
        rounds=rounds,
        wall_s={method: (prompt_ms + answer_ms) / 1e3} if measured else {},
        prefill_s={method: prompt_ms / 1e3} if measured else {},
    )


def _refuse_other_words(timings: Fields) -> None:
    for key in timings.values:
        if key in timings and _OF_DRAFTS.search(key):
            raise timings.error(
                key, "must stand beside draft_n and draft_n_accepted, which say what was drafted", "alone"
            )


LLAMACPP_TIMINGS = Format(**described("llamacpp-timings"), read=by_response(_parse), sees=_sees)
