"""What a recorded drafter drafts: looked up in its rounds, and drawn where no round says it.

Tokens are the target's or refused ones; see `world`. Letters: a round starts at an output position, and a token
of it stands at a depth, 0 for the first.
"""

from typing import NamedTuple

from ...traces.rounds.recording import RoundsRecording
from ..hazard.draws import Hazard
from ..hazard.lengths import fit_lengths
from ..unrecorded_error import UnrecordedContextError
from .recorded_tokens import WHOLE
from .request_rounds import RequestRounds


class UnrecordedRoundError(UnrecordedContextError):
    """Replay without a fallback came to a token of which no recorded round says whether the target keeps it."""

    NEEDED = "a round that was not recorded; leave out `strict`"


class Kept(NamedTuple):
    """How a draft came out: tokens drafted, leading ones that are the target's, decisions that were modelled."""

    num_drafted: int
    num_kept: int
    num_modelled: int


class RoundDrafts:
    """Drafts of recorded drafters, by index into `meta.drafters`.

    Args:
        trace: the recording.
        hazard: draws what no round says; None makes the first unknown an error.
    """

    def __init__(self, trace: RoundsRecording, hazard: Hazard | None) -> None:
        self._trace = trace
        self._hazard = hazard
        self._fewest: dict[int, int] = {}

    def draft(self, state: RequestRounds, drafter: int, start: int, depth: int, asked: int) -> Kept:
        """At most `asked` tokens from `depth` of a round on, all before it the target's.

        Raises:
            UnrecordedRoundError: without a hazard, and no round says it.
        """
        stops, modelled = self._stops(state, drafter, start, depth + asked)
        wanted = max(min(asked, stops - depth), 0)
        kept, drawn = self._kept(state, drafter, start, depth, wanted)
        return Kept(wanted, kept, drawn if depth else drawn + modelled)

    def refused(self, state: RequestRounds, drafter: int, start: int, depth: int, asked: int) -> int:
        """Tokens drafted after a refused one of the same round: all that are asked for, unless it stops by itself."""
        stops, _ = self._stops(state, drafter, start, depth + asked)
        return max(min(asked, stops - depth), 0)

    def _stops(self, state: RequestRounds, drafter: int, start: int, asked: int) -> tuple[int, int]:
        """(tokens after which the drafter stops in a round started at `start`, decisions modelled for it)."""
        if start >= state.num_tokens:
            return WHOLE, 0
        known = state.known[drafter]
        stops = known.num_drafted(start)
        if stops is not None:
            placed = stops == 0 and known.was_placed(start)
            if placed and self._hazard is None:
                raise UnrecordedRoundError(state.request.request_id, start, "draft")
            return stops, int(placed)
        if self._hazard is None:
            if asked > self._always_drafted(drafter):
                raise UnrecordedRoundError(state.request.request_id, start, "draft")
            return WHOLE, 0
        stops = self._hazard.num_drafted(state.request.request_id, drafter, start=start, asked=asked)
        return (WHOLE, 0) if stops is None else (stops, 1)

    def _always_drafted(self, drafter: int) -> int:
        """Tokens before which the log never shows this drafter stopping by itself."""
        if drafter not in self._fewest:
            lengths = fit_lengths(self._trace.requests, self._trace.meta.drafters[drafter])
            self._fewest[drafter] = WHOLE if lengths is None else lengths.fewest
        return self._fewest[drafter]

    def _kept(self, state: RequestRounds, drafter: int, start: int, depth: int, wanted: int) -> tuple[int, int]:
        """(leading tokens that are the target's, decisions modelled) of `wanted` tokens from `depth` of a round on."""
        known = state.known[drafter]
        num_agreed = known.num_agreed(start)
        # Nobody looks at what is drafted after the end of the answer.
        wanted = max(min(wanted, state.num_tokens - start - depth), 0)
        num_drawn = 0
        for kept in range(max(num_agreed - depth, 0), wanted):
            agrees = known.agrees(start, depth + kept)
            if agrees is None:
                num_drawn += 1
                agrees = self._drawn(state, drafter, start, depth + kept, num_agreed)
            if not agrees:
                return kept, num_drawn + self._placed(state, drafter, start, depth, depth + kept + 1)
        return wanted, num_drawn + self._placed(state, drafter, start, depth, depth + wanted)

    def _drawn(self, state: RequestRounds, drafter: int, start: int, depth: int, num_agreed: int) -> bool:
        request_id = state.request.request_id
        if self._hazard is None:
            raise UnrecordedRoundError(request_id, start + depth, "draft")
        beside = state.known[drafter].beside(start, depth)
        known = min(num_agreed, depth)
        return self._hazard.agrees(request_id, drafter, start=start, depth=depth, known=known, beside=beside)

    def _placed(self, state: RequestRounds, drafter: int, start: int, first: int, last: int) -> int:
        """Of tokens `first` to `last` - 1 of a round, how many only placed rounds speak of."""
        count = state.known[drafter].num_placed(start, first, last)
        if count and self._hazard is None:
            raise UnrecordedRoundError(state.request.request_id, start + first, "draft")
        return count
