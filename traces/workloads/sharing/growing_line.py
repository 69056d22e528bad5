"""Sessions in which each request reads all that came before it: what was read, what was answered, and something new.

Letter: T turns.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

from ..arrival import Arrival
from .session_kind import Place


class GrowingLine:
    """The rest of a session; implements `Turns`. Units of its text are numbered one after another.

    Args:
        drawn: the session.
        turn: number of the next request, from 0.
    """

    __slots__ = ("_drawn", "_turn")

    depths = ()

    def __init__(self, drawn: "DrawnLine", turn: int) -> None:
        self._drawn = drawn
        self._turn = turn

    def reached(self, depth: int, at_ps: int) -> tuple[Arrival, ...]:
        """See `Turns`: nobody waits for a depth."""
        return ()

    def after(self, ended_ps: int) -> tuple[Arrival, ...]:
        """See `Turns`."""
        return (self._drawn.arrival(self._turn, ended_ps),)


class DrawnLine:
    """A session; changes no more.

    Args:
        place: which.
        shared_tokens: with which the prompts of all sessions begin.
        new_tokens: `[T]` that each request reads and none before it had, beside the shared ones.
        output_tokens: `[T]`.
        waits_ps: `[T - 1]` from the end of each request to the next.

    Raises:
        ArgumentError: see `Place.check_units`.
    """

    __slots__ = ("_ids", "_outputs", "_place", "_prompts", "_waits_ps")

    def __init__(
        self,
        place: Place,
        shared_tokens: int,
        new_tokens: Sequence[int],
        output_tokens: Sequence[int],
        waits_ps: Sequence[int],
    ) -> None:
        self._place = place
        texts = accumulate(map(sum, zip(new_tokens, output_tokens, strict=True)), initial=shared_tokens)
        self._prompts = array("q", [text + new for text, new in zip(texts, new_tokens, strict=False)])
        self._outputs = array("q", output_tokens)
        self._waits_ps = waits_ps
        shared, last = shared_tokens // place.unit_tokens, self._prompts[-1] // place.unit_tokens
        place.check_units(last)
        first = place.first_id
        self._ids = array("q", range(shared)) + array("q", range(first, first + last - shared))

    def begin(self) -> Arrival:
        """The first request."""
        return self.arrival(0, self._place.arrives_ps)

    def arrival(self, turn: int, after_ps: int) -> Arrival:
        """A request, by its number, whose wait begins then."""
        number, _, unit, tag, slo = self._place
        prompt, output, ids = self._prompts[turn], self._outputs[turn], self._ids
        full = prompt // unit
        follows = GrowingLine(self, turn + 1) if turn + 1 < len(self._prompts) else None
        return Arrival(
            f"{number}/{turn}" if turn else str(number),
            after_ps + self._waits_ps[turn - 1] if turn else after_ps,
            prompt,
            output,
            tag,
            ids[:full],
            follows,
            slo,
            ids[full : (prompt + output) // unit] if follows is not None else (),
        )
