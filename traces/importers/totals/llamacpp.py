"""What llama.cpp counts of a request, in its responses or in its log: tokens, drafted and accepted ones, seconds.

Its totals do not say how many steps there were, but every step emits what it accepted and one token of the target's
own, and the prefill emits the first: steps = tokens - 1 - accepted. Where drafts of a window would not fit into so few
steps, there were more of them and the last one was cut by the end of the answer.
"""

from dataclasses import dataclass
from pathlib import Path

from ...rounds.rounds import TARGET_ALONE, RoundsRequest
from ..learned import Learned
from ..methods import DRAFTER
from ..reading.fields import Fields
from .counted import Counted, draw_rounds

LLAMACPP_NOTES = (
    "Exact: of each request, its tokens, how many were drafted and how many of those accepted, its steps, which "
    "follow from them, and the seconds of its prompt and of its answer.",
    "Unknown: how many tokens each step drafted and kept, and in which order steps came: drafts are taken to be as "
    "even as they can be within the window (--window), every drafted token to be kept with one probability for the "
    "request, and the rest is drawn (--seed), so that each request takes as many steps of the target as it took; "
    "everything that a round says counts as modelled. Token ids.",
)
LONGEST_MS = 1e12  # of a prompt or an answer: thirty years are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What was counted of one request.

    Attributes:
        num_tokens: of the answer, >= 1.
        prompt_tokens: of the prompt, 0 if unknown.
        num_drafted: tokens drafted, None if nothing was ever drafted.
        num_accepted: of those, the ones that stayed.
        prompt_ms: milliseconds of the prompt, 0 if unknown.
        predicted_ms: milliseconds of the answer after it, 0 if unknown.
    """

    num_tokens: int
    prompt_tokens: int
    num_drafted: int | None
    num_accepted: int
    prompt_ms: float
    predicted_ms: float


def request_of(learned: Learned, path: Path, fields: Fields, request_id: str, told: Timings) -> RoundsRequest:
    """The request, of the target alone if nothing was drafted; raises TraceFormatError for counts that cannot be."""
    method, rounds = TARGET_ALONE, {}
    if told.num_drafted is not None:
        method = learned.drafter(DRAFTER, path, prefilled=True, settled=True)
        counted = _counted(learned, method, fields, told)
        rounds = {method: draw_rounds(learned, method, fields, request_id, counted)}
    measured = told.prompt_ms > 0 and told.predicted_ms > 0
    return RoundsRequest(
        request_id=request_id,
        tag="",
        prompt_tokens=told.prompt_tokens,
        num_tokens={method: told.num_tokens},
        rounds=rounds,
        wall_s={method: (told.prompt_ms + told.predicted_ms) / 1e3} if measured else {},
        prefill_s={method: told.prompt_ms / 1e3} if measured else {},
    )


def _counted(learned: Learned, name: str, fields: Fields, told: Timings) -> Counted:
    drafted, accepted = told.num_drafted or 0, told.num_accepted
    if accepted > drafted:
        raise fields.error("draft_n_accepted", f"must be at most draft_n, {drafted}", accepted)
    window = learned.window_of(name, fields, None)
    return Counted(
        num_tokens=told.num_tokens,
        num_steps=max(told.num_tokens - 1 - accepted, -(-drafted // window)),
        num_accepted=accepted,
        num_drafted=drafted,
    )
