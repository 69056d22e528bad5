"""The world that answers from an imported recording: rounds are looked up, and what no round says is drawn.

A drafted token is either the target's own or a refused one. Whether it is the target's is known from the rounds, or
drawn from the fitted hazard and counted as modelled, when it is drafted (`drafts`); after a token that is not the
target's nothing is drawn, since the target refuses all of it. Verification then compares tokens, and models nothing.

A drafter that stopped by itself in a recorded round stops there again: what it drafted is all there is, and where it
drafted nothing the answer is an empty draft. What stands where it does because it was placed there, and not because the
log says so, counts as modelled.

`place` is 1 after a token of the target's text and 0 after any other.
"""

from collections.abc import Iterator, Sequence
from math import nan

from ...decoding.contract import Draft, Verify
from ...decoding.pool import Pool
from ...decoding.prompt_lookup import prompt_lookup
from ...decoding.results import Drafted, DraftResults, Forward, Judged, VerifyResults, made
from ...decoding.rules.signal import NO_SIGNAL, Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ...runs.text_quality import TextQuality
from ...traces.rounds.recording import RoundsRecording
from ..charges import draft_forwards, total_s, verify_forward
from ..cost.base import CostModel, RoundCost
from ..hazard.draws import Hazard
from ..recorded_pool import recorded_rule
from .charges import RoundCharges
from .drafts import RoundDrafts, UnrecordedRoundError
from .request_rounds import RequestRounds

ON_TRUNK, OFF_TRUNK = 1, 0


class RoundsWorld:
    """Answers operations from an imported recording and charges seconds from a cost model.

    Args:
        trace: the recording.
        pool: its members.
        cost: seconds of forwards.
        hazard: draws what no round says; None makes the first unknown an error.
    """

    def __init__(self, *, trace: RoundsRecording, pool: Pool, cost: CostModel, hazard: Hazard | None) -> None:
        self._trace = trace
        self._pool = pool
        self._num_free = len(pool.members) - len(trace.meta.drafters) - 1
        self._cost = cost
        self._hazard = hazard
        self._drafts = RoundDrafts(trace, hazard)
        meta = trace.meta
        self._lookup = recorded_rule(meta.ngram)
        self._measured = RoundCharges(cost, meta.drafters, meta.target) if isinstance(cost, RoundCost) else None
        self._open: dict[str, RequestRounds] = {}
        self.num_reanchored: dict[str, int] = {}
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
        if level < self._num_free:
            looked_up = [self._look_up(session, step) for session, step in items]
            return DraftResults(looked_up, [], self._cost.lookup_s * len(items))
        drafted = [self._draft(session, step, level) for session, step in items]
        forwards = self._draft_forwards(items, drafted, level)
        return made(DraftResults, (drafted, forwards, total_s(forwards), 1.0))

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Compare what is pending with the target's text, then charge the operation."""
        judged = [self._judge(session, step) for session, step in items]
        forwards = self._verify_forwards(items, level)
        return made(VerifyResults, (judged, forwards, total_s(forwards), 1.0))

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

    def signal(self, session: Session, index: int) -> Signal:
        """Nothing: rounds hold no probabilities."""
        return NO_SIGNAL

    # -- drafting

    def _draft(self, session: Session, step: Draft, level: int) -> Drafted:
        if step.stop is not None:
            raise self._no_probabilities(step)
        state = self._open[session.request_id]
        state.begin(session.pool.names[level])
        drafter, depth = level - self._num_free, _run_length(session, level)
        asked, position = min(step.tokens, session.room), len(session.emitted) + len(session.tokens)
        if not self._on_trunk(session):
            if depth and (depth == len(session.places) or session.places[-1 - depth] == ON_TRUNK):
                asked = self._drafts.refused(state, drafter, position - depth, depth, asked)
            return Drafted([state.refused] * asked, [OFF_TRUNK] * asked)
        wanted, kept, num_modelled = self._drafts.draft(state, drafter, position - depth, depth, asked)
        num_modelled = max(num_modelled, wanted) if state.drawn else num_modelled
        refused = wanted - kept
        tokens = state.trunk[position : position + kept] + [state.refused] * refused
        return made(Drafted, (tokens, [ON_TRUNK] * kept + [OFF_TRUNK] * refused, num_modelled))

    def _look_up(self, session: Session, step: Draft) -> Drafted:
        """Prompt lookup over the real tokens, which the log has."""
        state = self._open[session.request_id]
        on_trunk = self._on_trunk(session)
        answer = [*session.emitted, *session.tokens]
        if answer and min(answer) < 0:
            # What is refused or after the logged text has no id: whether the lookup finds anything is modelled, as no.
            self._need_hazard(session, "lookup", len(answer))
            return Drafted([], [], 1)
        context = [*session.prompt, *answer]
        tokens = prompt_lookup(context, num_tokens=min(step.tokens, session.room), rule=self._lookup)
        places = []
        for token, own in zip(tokens, state.trunk[len(answer) :], strict=False):
            on_trunk = on_trunk and token == own
            places.append(ON_TRUNK if on_trunk else OFF_TRUNK)
        return Drafted(tokens, places)

    # -- judging

    def _judge(self, session: Session, step: Verify) -> Judged:
        """The target keeps what is its own text; after that it writes the next token of it."""
        if not step.rule.lossless:
            raise self._no_probabilities(step)
        self._anchor(session)
        state = self._open[session.request_id]
        num_judged = len(session.places)
        accepted = session.places.index(OFF_TRUNK) if OFF_TRUNK in session.places else num_judged
        position = len(session.emitted) + accepted
        own_token = state.trunk[position] if position < len(state.trunk) else state.refused  # no room for it then
        num_looked_at = min(accepted + 1, num_judged)
        # Where rounds were drawn, so was where each of them ends: nothing of the verification is replayed.
        num_modelled = num_looked_at + 1 if state.drawn else 0
        return made(Judged, (accepted, own_token, ON_TRUNK, (nan,) * num_looked_at, num_modelled, ()))

    # -- where a session stands

    def _on_trunk(self, session: Session) -> bool:
        """Whether all that is pending is the target's; what a Commit took off the trunk resumes on it."""
        if session.places:
            return session.places[-1] == ON_TRUNK
        self._anchor(session)
        return True

    def _anchor(self, session: Session) -> None:
        if session.place != ON_TRUNK:
            self._need_hazard(session, "re-anchor", len(session.emitted))
            session.place = ON_TRUNK
            self.num_reanchored[session.request_id] = self.num_reanchored.get(session.request_id, 0) + 1

    def _need_hazard(self, session: Session, what: str, position: int) -> None:
        if self._hazard is None:
            raise UnrecordedRoundError(session.request_id, position, what)

    def _no_probabilities(self, step: Draft | Verify) -> ValueError:
        meta = self._trace.meta
        return ValueError(
            f"{step} needs probabilities, and recording {meta.name!r} holds none: it was imported from {meta.source}"
        )


def _run_length(session: Session, level: int) -> int:
    """How many pending tokens up to the last one this drafter wrote: its round began that far back."""
    drafters = session.drafters
    count = 0
    while count < len(drafters) and drafters[-1 - count] == level:
        count += 1
    return count
