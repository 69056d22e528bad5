"""What llama.cpp counts of each request, in its responses or in the log of its server: tokens, drafts and seconds.

Its totals do not say how many steps there were, but every step emits what it accepted and one token of the target's
own, and the prefill emits the first: steps = tokens - 1 - accepted. Where drafts of a window would not fit into so few
steps, there were more of them and the last one was cut by the end of the answer. The window is `--draft-max` of the
server: nothing says it.

A response has `timings`: `predicted_n` tokens of the answer, `prompt_n` and `cache_n` of the prompt, `draft_n`,
`draft_n_accepted`, `prompt_ms`, `predicted_ms`. In the log a request is the lines `prompt eval time = ... ms / N
tokens`, `eval time = ... ms / N tokens` and `draft acceptance rate = ... (A accepted / D generated)`, in this order,
with others between them. Without `draft_n`, or the third line, a request is one of the target alone.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..format import Format, described
from ..ongoing import Ongoing
from ..reading.fields import Fields
from ..reading.lines import text_lines
from ..responses import Responses, by_response, stem, within
from .counted import Counted, draw_rounds

_LONGEST_MS = 1e12  # of a prompt or an answer: thirty years are none
_EVAL_TIME = "eval time = ... ms / N tokens"
_PROMPT = re.compile(r"prompt eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_ANSWER = re.compile(r"(?<!prompt )eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_DRAFT = re.compile(r"draft acceptance rate = [^(]{1,20}\( *([0-9]{1,10}) accepted / *([0-9]{1,10}) generated\)")


def _sees(found: Fields) -> bool:
    timings = within(found, "timings")
    return timings is not None and "predicted_n" in timings


def _parse(file: Responses, line: Fields) -> RoundsRequest | None:
    request_id = file.name_of(line)
    return _request(file, line.nested("timings"), request_id)


def _sees_line(line: str) -> bool:
    return bool(_PROMPT.search(line) or _ANSWER.search(line) or _DRAFT.search(line))


def _read_log(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    """One request per answer of the log."""
    for path in files:
        file = Responses(path, ongoing)
        for number, timings in enumerate(_timings(path), start=1):
            request_id = f"{stem(path)}/{number}"
            ongoing.request(timings, "request", request_id)
            yield from file.answered(_request(file, timings, request_id))


def _timings(path: Path) -> Iterator[Fields]:
    """What the lines of each request say, under the names they have in responses."""
    told: dict[str, int | float] = {}
    place = str(path)
    for number, line in text_lines(path):
        here = f"{path}: line {number}"
        found = _said(here, line)
        if "draft_n" in found and ("predicted_n" not in told or "draft_n" in told):
            rule = "must follow the eval time of its request"
            raise Fields(here, {}).error("draft acceptance rate", rule, line.strip()[-60:])
        if "predicted_n" in told and ("prompt_n" in found or "predicted_n" in found):
            yield Fields(place, told)
            told = {}
        if found:
            place = here
            told |= found
    if "predicted_n" in told:
        yield Fields(place, told)
    elif place == str(path):
        raise Fields(place, {}).error("content", f"must hold {_EVAL_TIME}", "no such line")


def _said(place: str, line: str) -> dict[str, int | float]:
    for pattern, milliseconds, tokens in ((_PROMPT, "prompt_ms", "prompt_n"), (_ANSWER, "predicted_ms", "predicted_n")):
        found = pattern.search(line)
        if found:
            try:
                return {milliseconds: float(found[1]), tokens: int(found[2])}
            except ValueError:
                raise Fields(place, {}).error(milliseconds, "must be a number", found[1]) from None
    found = _DRAFT.search(line)
    return {"draft_n_accepted": int(found[1]), "draft_n": int(found[2])} if found else {}


def _request(file: Responses, timings: Fields, request_id: str) -> RoundsRequest | None:
    """The request, of the target alone if nothing was drafted; raises TraceFormatError for counts that cannot be."""
    tokens = timings.count("predicted_n", least=0)
    if not tokens:
        return None
    prompt_tokens = sum(timings.count(key, least=0, default=0) for key in ("prompt_n", "cache_n"))
    drafted = timings.known_count("draft_n", least=0)
    accepted = timings.count("draft_n_accepted", least=0, default=0)
    prompt_ms, answer_ms = (
        timings.rate(key, most=_LONGEST_MS) if key in timings else 0.0 for key in ("prompt_ms", "predicted_ms")
    )
    method, rounds = TARGET_ALONE, {}
    if drafted is not None:
        method = file.drafter()
        counted = _counted(file.ongoing, method, timings, tokens, drafted, accepted)
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


def _counted(ongoing: Ongoing, name: str, timings: Fields, tokens: int, drafted: int, accepted: int) -> Counted:
    if accepted > drafted:
        raise timings.error("draft_n_accepted", f"must be at most draft_n, {drafted}", accepted)
    window = ongoing.drafters.window_of(name, timings)
    return Counted(
        num_tokens=tokens,
        num_steps=max(tokens - 1 - accepted, -(-drafted // window)),
        num_accepted=accepted,
        num_drafted=drafted,
    )


LLAMACPP_TIMINGS = Format(**described("llamacpp-timings"), read=by_response(_parse), sees=_sees)
LLAMACPP_LOG = Format(**described("llamacpp-log"), read=_read_log, sees_line=_sees_line)
