"""The world that replays an imported recording: its answers, and what operations cost."""

from collections.abc import Iterator, Sequence

from ...decoding.pool import Pool
from ...decoding.prefixes.counts import NO_COUNTS
from ...decoding.results import Drafted, DraftResults, Forward, VerifyResults, made
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ...runs.text_quality import TextQuality
from ...traces.rounds.recording import RoundsRecording
from ..charges import draft_forwards, total_s, verify_forward
from ..cost.base import CostModel, RoundCost
from ..hazard.draws import Hazard
from .answers import ON_TRUNK, RoundAnswers
from .charges import RoundCharges
from .request_rounds import RequestRounds


class RoundsWorld(RoundAnswers):
    """Answers operations from an imported recording and charges seconds from a cost model.

    Args:
        trace: the recording.
        pool: its members.
        cost: seconds of forwards.
        hazard: draws what no round says; None makes the first unknown an error.
    """

    def __init__(self, *, trace: RoundsRecording, pool: Pool, cost: CostModel, hazard: Hazard | None) -> None:
        num_free = len(pool.members) - len(trace.meta.drafters) - 1
        super().__init__(trace=trace, num_free=num_free, hazard=hazard)
        self._pool = pool
        self._cost = cost
        meta = trace.meta
        self._measured = RoundCharges(cost, meta.drafters, meta.target) if isinstance(cost, RoundCost) else None
        self.num_divergent: dict[str, int] = {}
        self.quality: dict[str, TextQuality] = {}

    def sessions(self, prefill_before: tuple[bool, ...]) -> Iterator[Session]:
        """The requests in file order, each made when it is asked for; `prefill_before` as in `Session`."""
        for request in self._trace.requests:
            state = self._open[request.request_id] = RequestRounds(request, self._trace.meta, waits=any(prefill_before))
            yield Session(
                pool=self._pool,
                request_id=request.request_id,
                tag=request.tag,
                prompt=state.prompt,
                budget=len(state.trunk),
                eos=frozenset(),
                ending=state.ending,
                prefill_before=prefill_before,
            )

    def foresee(self, request_id: str) -> list[int]:
        """Let any round of a request be tried from any position, and return its text, the longest of all methods."""
        state = self._open[request_id]
        state.foresee()
        return state.trunk

    def open(self, session: Session) -> None:
        """Start on the trunk."""
        session.place = ON_TRUNK

    def close(self, session: Session) -> None:
        """Forget the request, but for how far it came from the trunk."""
        state = self._open.pop(session.request_id)
        differ = sum([ours != theirs for ours, theirs in zip(session.emitted, state.trunk, strict=False)])
        self.num_divergent[session.request_id] = differ + abs(state.num_tokens - len(session.emitted))

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Answer every draft from the request's rounds, then charge the operation."""
        if level < self.num_free:
            looked_up = [self.looked_up(session, step) for session, step in items]
            return DraftResults(looked_up, [], self._cost.lookup_s * len(items))
        drafted = [self.drafted(session, step, level) for session, step in items]
        forwards = self._draft_forwards(items, drafted, level)
        return made(DraftResults, (drafted, forwards, total_s(forwards), 1.0, NO_COUNTS))

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Compare what is pending with the target's text, then charge the operation."""
        judged = [self.judged(session, step, level) for session, step in items]
        forwards = self._verify_forwards(items, level)
        return made(VerifyResults, (judged, forwards, total_s(forwards), 1.0, NO_COUNTS))

    def _verify_forwards(self, items: Sequence[VerifyItem], level: int) -> list[Forward]:
        if self._measured is not None and len(items) == 1:
            session, _ = items[0]
            return self._measured.verify(self._open[session.request_id], session, level)
        return [verify_forward(self._cost, self._pool.names[level], items, level)]

    def _draft_forwards(self, items: Sequence[DraftItem], drafted: list[Drafted], level: int) -> list[Forward]:
        if self._measured is not None and len(items) == 1:
            state = self._open[items[0][0].request_id]
            return self._measured.draft(state, items[0], drafted[0], level)
        return draft_forwards(self._cost, self._pool.names[level], items, drafted, level)
