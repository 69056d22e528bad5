"""Where the answer of a path ends whose prompt holds the beginning of it."""

from collections.abc import Sequence

from ..request_tokens import Ending


def ending_after(ending: Ending, before: Sequence[int]) -> Ending:
    """The ending of a path whose prompt holds part of its answer: what ends the whole answer ends it."""
    known = list(before)

    def ends(emitted: list[int], num_before: int) -> int | None:
        kept = ending([*known, *emitted], len(known) + num_before)
        return None if kept is None else kept - len(known)

    return ends
