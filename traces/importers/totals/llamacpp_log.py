"""The log of llama.cpp's server: of each request, tokens drafted and accepted in all, and seconds.

Exact: of each request, its tokens, how many were drafted and how many of those accepted, its steps, which follow from
them, and the seconds of its prompt and of its answer.

Unknown: how many tokens each step drafted and kept, and in which order steps came: drafts are taken to be as even as
they can be within the window (--window), every drafted token to be kept with one probability for the request, and the
rest is drawn (--seed), so that each request takes as many steps of the target as it took; everything that a round says
counts as modelled. Token ids.

A request is the lines `prompt eval time = ... ms / N tokens`, `eval time = ... ms / N tokens` and `draft acceptance
rate = ... (A accepted / D generated)`, in this order, with others between them; without the third it is one of the
target alone. The window is `--draft-max` of the server: the log does not say it.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...rounds.rounds import RoundsRequest
from ..learned import Learned
from ..reading.fields import Fields
from ..reading.lines import text_lines
from ..responses import EMPTY
from .llamacpp import LLAMACPP_NOTES, LONGEST_MS, Timings, request_of

NOTES = LLAMACPP_NOTES
KEYS = ("draft acceptance rate = ... (A accepted / D generated)", "eval time = ... ms / N tokens")
_PROMPT = re.compile(r"prompt eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_ANSWER = re.compile(r"(?<!prompt )eval time = *([0-9.]{1,20}) ms / *([0-9]{1,10}) tokens")
_DRAFT = re.compile(r"draft acceptance rate = [^(]{1,20}\( *([0-9]{1,10}) accepted / *([0-9]{1,10}) generated\)")


def sees_line(line: str) -> bool:
    """Whether a line could be of such a log."""
    return bool(_PROMPT.search(line) or _ANSWER.search(line) or _DRAFT.search(line))


def read(files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
    """One request per answer of the log; raises TraceFormatError."""
    for path in files:
        for number, told in enumerate(_requests(path), start=1):
            request_id = f"{path.name.split('.')[0]}/{number}"
            learned.request(told, "request", request_id)
            tokens = told.count("predicted_n", least=0)
            if not tokens:
                learned.note(EMPTY)
                continue
            timings = Timings(
                num_tokens=tokens,
                prompt_tokens=told.count("prompt_n", least=0, default=0),
                num_drafted=told.known_count("draft_n", least=0),
                num_accepted=told.count("draft_n_accepted", least=0, default=0),
                prompt_ms=told.rate("prompt_ms", most=LONGEST_MS) if "prompt_ms" in told else 0.0,
                predicted_ms=told.rate("predicted_ms", most=LONGEST_MS),
            )
            yield request_of(learned, path, told, request_id, timings)


def _requests(path: Path) -> Iterator[Fields]:
    """What the lines of each request say, under the names they have in responses."""
    told: dict[str, int | float] = {}
    place = str(path)
    for number, line in text_lines(path):
        found = _said(f"{path}: line {number}", line)
        if "draft_n" in found and ("predicted_n" not in told or "draft_n" in told):
            rule = "must follow the eval time of its request"
            raise Fields(f"{path}: line {number}", {}).error("draft acceptance rate", rule, line.strip()[-60:])
        if "predicted_n" in told and ("prompt_n" in found or "predicted_n" in found):
            yield Fields(place, told)
            told = {}
        if found:
            place = f"{path}: line {number}"
            told |= found
    if "predicted_n" in told:
        yield Fields(place, told)
    elif place == str(path):
        raise Fields(place, {}).error("content", f"must hold {KEYS[1]}", "no such line")


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
