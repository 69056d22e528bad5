"""Which of a request's pending tokens each part of an `Overlap` works on.

Letters: P parts.
"""

from copy import copy
from typing import TypeVar

from ..contract import Draft, Overlap
from ..request_tokens import RequestText

# The pending tokens from the first index up to the second are judged; a Draft has none and stands at the end.
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

    A copy shares what is committed: it is for a world to read, and lives no longer than one operation.
    """
    if end == len(text.tokens):
        return text
    front = copy(text)
    for name in ("tokens", "places", "drafters", "judges"):
        setattr(front, name, getattr(text, name)[:end])
    limit = text.num_prompt + len(text.emitted) + end
    front.cached = [min(held, limit) for held in text.cached]
    return front
