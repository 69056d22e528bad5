"""Puts together what the parts of an `Overlap` say of one request: who is right decides what stays.

Letters: P parts, L levels.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..request_tokens import RequestText
from ..results import Drafted, Judged, Parted
from .spans import Span
from .standing import NOTHING, Standing


class Settled(NamedTuple):
    """What an `Overlap` leaves of a request.

    Attributes:
        pending: what stands from the first part's span on: its accepted tokens, its own one, and what stays of those
            after them.
        own: `[P]` 1 where the part's own token had room, else 0.
        cached: `[L]` tokens of the context that each member's cache holds and that are still its text.
    """

    pending: Standing
    own: list[int]
    cached: list[int]


def settle(text: RequestText, levels: Sequence[int], spans: Sequence[Span], rows: Parted) -> Settled:
    """Take the parts from the last to the first. Changes nothing.

    Args:
        text: before the operation.
        levels: `[P]` of the members.
        spans: `[P]` by `spans_of`.
        rows: `[P]` what each part said.
    """
    held = list(text.cached)
    own: list[int] = []
    committed = text.num_prompt + len(text.emitted)
    ahead, alike = NOTHING, len(text.tokens)
    for level, (first, end), row in zip(reversed(levels), reversed(spans), reversed(rows), strict=True):
        if isinstance(row, Drafted):
            count = len(row.tokens)
            ahead = Standing(row.tokens, row.places, [level] * count, [level] * count)
            alike = end + count
            if count and not text.pool.members[level].model_free:
                held[level] = committed + end + count - 1
            own.append(0)
        else:
            held[level] = committed + end
            alike = alike if _continues(first, end, row, ahead) else first + row.num_accepted
            ahead, num_own = _judged(text, level, (first, end), row, ahead)
            own.append(num_own)
    # No cache may hold what is another text now: from `alike` pending tokens on.
    cached = [min(each, committed + alike) for each in held]
    return Settled(ahead, own[::-1], cached)


def _continues(first: int, end: int, row: Judged, ahead: Standing) -> bool:
    """Whether what stands after a part's span goes on from the part's verdict.

    A token that replay does not know (below 0) equals none.
    """
    return row.num_accepted == end - first and ahead.tokens[:1] == [row.own_token] and row.own_token >= 0


def _judged(text: RequestText, level: int, span: Span, row: Judged, ahead: Standing) -> tuple[Standing, int]:
    """What stands from the beginning of a part's span on, and how many own tokens of it."""
    first, end = span
    cut = first + row.num_accepted
    judges = [max(judge, level) for judge in text.judges[first:cut]]
    kept = Standing(text.tokens[first:cut], text.places[first:cut], text.drafters[first:cut], judges)
    ended = text.tokens[:cut][-1:]
    if text.budget - len(text.emitted) - cut < 1 or (ended and ended[0] in text.eos):
        return kept, 0
    after = ahead.since(1) if _continues(first, end, row, ahead) else NOTHING
    own = Standing([row.own_token], [row.own_place], [level], [level])
    return Standing(*[one + two + three for one, two, three in zip(kept, own, after, strict=True)]), 1
