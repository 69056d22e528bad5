"""What each part of an `Overlap` works on, the request's state after all parts, and each part's outcome.

Letters: P parts, L levels.
"""

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, TypeVar

from .request_text import NOTHING, PendingTokens, RequestText
from .results import Drafted, Judged, Parted, PartRun
from .steps import Draft, Outcome, Overlap

# The pending tokens from the first index up to the second are judged; a Draft's span is empty, at the end.
Span = tuple[int, int]
Text = TypeVar("Text", bound=RequestText)


def levels_of(text: RequestText, step: Overlap) -> tuple[int, ...]:
    """`[P]` levels of the members; raises ValueError for an unknown one."""
    level = text.pool.level
    return tuple([level(part.model) for part in step.steps])


def spans_of(text: RequestText, step: Overlap, levels: tuple[int, ...]) -> list[Span]:
    """`[P]` the pending tokens of each part: from the first that its member has not endorsed to those of the next."""
    end = len(text.tokens)
    spans: list[Span] = []
    for part, level in zip(reversed(step.steps), reversed(levels), strict=True):
        first = end if isinstance(part, Draft) else min(text.first_unjudged(level), end)
        spans.append((first, end))
        end = first
    return spans[::-1]


def front_of(text: Text, end: int) -> Text:
    """The request as if nothing were pending from index `end` on; itself where that is so.

    A copy shares what is committed: a world reads it during one operation only.
    """
    if end == len(text.tokens):
        return text
    front = copy(text)
    for name in ("tokens", "places", "drafters", "judges"):
        setattr(front, name, getattr(text, name)[:end])
    limit = text.num_prompt + len(text.emitted) + end
    front.cached = [min(held, limit) for held in text.cached]
    return front


def outcomes_of(
    request_id: str,
    step: Overlap,
    spans: Sequence[Span],
    rows: Parted,
    own: Sequence[int],
    parts: Sequence[PartRun],
    *,
    num_rows: int,
) -> list[Outcome]:
    """`[P]` outcomes, nothing emitted and not done, from `[P]` spans, rows, own tokens that had room, and runs."""
    outcomes = []
    for part, (first, end), row, num_own, ran in zip(step.steps, spans, rows, own, parts, strict=True):
        num_drafted = num_judged = num_accepted = 0
        tvd: Sequence[float] = ()
        if isinstance(row, Drafted):
            num_drafted = len(row.tokens)
        else:
            num_judged, num_accepted, tvd = end - first, row.num_accepted, row.tvd
        outcomes.append(
            Outcome(
                request_id=request_id,
                step=part,
                num_drafted=num_drafted,
                num_judged=num_judged,
                num_accepted=num_accepted,
                num_own=num_own,
                num_emitted=0,
                refused_at=num_accepted if num_accepted < num_judged else None,
                tvd=tvd,
                duration_s=ran.duration_s,
                num_rows=num_rows,
                done=False,
            )
        )
    return outcomes


class Settled(NamedTuple):
    """A request's state after an `Overlap`."""

    # pending from the first part's span on: its accepted tokens, its own one, and what is kept of those after them
    pending: PendingTokens
    own: list[int]  # `[P]` 1 where the part's own token had room, else 0
    cached: list[int]  # `[L]` tokens of the context that each member's cache holds and that are still its text


def settle(text: RequestText, levels: Sequence[int], spans: Sequence[Span], rows: Parted) -> Settled:
    """The state after `[P]` rows, from the text before them, by `[P]` levels and spans; mutates nothing."""
    held = list(text.cached)
    own: list[int] = []
    committed = text.num_prompt + len(text.emitted)
    ahead, alike = NOTHING, len(text.tokens)
    for level, (first, end), row in zip(reversed(levels), reversed(spans), reversed(rows), strict=True):
        if isinstance(row, Drafted):
            count = len(row.tokens)
            ahead = PendingTokens(row.tokens, row.places, [level] * count, [level] * count)
            alike = end + count
            if count and not text.pool.members[level].model_free:
                held[level] = committed + end + count - 1
            own.append(0)
        else:
            held[level] = committed + end
            alike = alike if _continues(first, end, row, ahead) else first + row.num_accepted
            ahead, num_own = _judged(text, level, (first, end), row, ahead)
            own.append(num_own)
    # No cache may hold tokens from `alike` pending ones on: the text may differ there now.
    cached = [min(each, committed + alike) for each in held]
    return Settled(ahead, own[::-1], cached)


def _continues(first: int, end: int, row: Judged, ahead: PendingTokens) -> bool:
    """Whether what follows a part's span continues its verdict; a token below 0 is unknown and equals none."""
    return row.num_accepted == end - first and ahead.tokens[:1] == [row.own_token] and row.own_token >= 0


def _judged(text: RequestText, level: int, span: Span, row: Judged, ahead: PendingTokens) -> tuple[PendingTokens, int]:
    """What is pending from the beginning of a part's span on, and how many own tokens of that part it has."""
    first, end = span
    cut = first + row.num_accepted
    judges = [max(judge, level) for judge in text.judges[first:cut]]
    kept = PendingTokens(text.tokens[first:cut], text.places[first:cut], text.drafters[first:cut], judges)
    ended = text.tokens[:cut][-1:]
    if text.budget - len(text.emitted) - cut < 1 or (ended and ended[0] in text.eos):
        return kept, 0
    after = ahead.since(1) if _continues(first, end, row, ahead) else NOTHING
    own = PendingTokens([row.own_token], [row.own_place], [level], [level])
    return PendingTokens(*[one + two + three for one, two, three in zip(kept, own, after, strict=True)]), 1
