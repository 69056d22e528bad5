"""What answers from an imported recording: rounds are looked up, and what no round says is drawn.

A drafted token is either the target's own or a refused one. Whether it is the target's is known from the rounds, or
drawn from the fitted hazard and counted as modelled, when it is drafted (`drafts`); after a token that is not the
target's nothing is drawn, since the target refuses all of it. Verification then compares tokens, and models nothing.

A drafter that stopped by itself in a recorded round stops there again: what it drafted is all there is, and where it
drafted nothing the answer is an empty draft. What stands where it does because it was placed there, and not because the
log says so, counts as modelled.

`place` is 1 after a token of the target's text and 0 after any other.
"""

from math import nan

from ...decoding.contract import Draft, Verify
from ...decoding.prompt_lookup import looked_up
from ...decoding.results import Drafted, Judged, made
from ...decoding.rules.signal import NO_SIGNAL, Signal
from ...decoding.session import Session
from ...traces.rounds.recording import RoundsRecording
from ..hazard.draws import Hazard
from ..recorded_answers import Replayed
from ..recorded_pool import recorded_rule
from .drafts import RoundDrafts, UnrecordedRoundError
from .request_rounds import RequestRounds

ON_TRUNK, OFF_TRUNK = 1, 0


class RoundAnswers:
    """Answers for sessions, each of which replays a request; see `RecordedAnswers`.

    Args:
        trace: the recording.
        num_free: model-free members, which come first in the pool.
        hazard: draws what no round says; None makes the first unknown an error.

    Attributes:
        num_free: see above.
        num_reanchored: per session, times replay resumed on the trunk after a Commit had left it.
    """

    def __init__(self, *, trace: RoundsRecording, num_free: int, hazard: Hazard | None) -> None:
        self._trace = trace
        self.num_free = num_free
        self._hazard = hazard
        self._drafts = RoundDrafts(trace, hazard)
        self._lookup = recorded_rule(trace.meta.ngram)
        self._open: dict[str, RequestRounds] = {}
        self.num_reanchored: dict[str, int] = {}
        self._requests = {request.request_id: request for request in trace.requests}

    def replay(self, session_id: str, request_id: str) -> Replayed:
        """See `RecordedAnswers`; the prefill writes the first token."""
        request = self._requests[request_id]
        state = self._open[session_id] = RequestRounds(request, self._trace.meta, waits=True)
        return Replayed(request.tag, state.prompt, len(state.trunk), frozenset(), state.ending, ON_TRUNK)

    def release(self, session_id: str) -> None:
        """See `RecordedAnswers`."""
        self._open.pop(session_id)
        self.num_reanchored.pop(session_id, None)

    def signal(self, session: Session, index: int) -> Signal:
        """Nothing: rounds hold no probabilities."""
        return NO_SIGNAL

    # -- drafting

    def drafted(self, session: Session, step: Draft, level: int) -> Drafted:
        """See `RecordedAnswers`."""
        if step.stop is not None:
            raise self._no_probabilities(step)
        state = self._open[session.request_id]
        state.begin(session.pool.names[level])
        drafter, depth = level - self.num_free, _run_length(session, level)
        asked, position = min(step.tokens, session.room), len(session.emitted) + len(session.tokens)
        if not self._on_trunk(session):
            if depth and (depth == len(session.places) or session.places[-1 - depth] == ON_TRUNK):
                asked = self._drafts.refused(state, drafter, position - depth, depth, asked)
            return Drafted([state.refused] * asked, [OFF_TRUNK] * asked)
        wanted, kept, num_modelled = self._drafts.draft(state, drafter, position - depth, depth, asked)
        num_modelled = max(num_modelled, wanted) if state.drawn else num_modelled
        refused = wanted - kept
        tokens = state.trunk[position : position + kept] + [state.refused] * refused
        return made(Drafted, (tokens, [ON_TRUNK] * kept + [OFF_TRUNK] * refused, num_modelled, None))

    def looked_up(self, session: Session, step: Draft) -> Drafted:
        """See `RecordedAnswers`; the log has the real tokens."""
        state = self._open[session.request_id]
        on_trunk = self._on_trunk(session)
        answer = [*session.emitted, *session.tokens]
        if answer and min(answer) < 0 and step.copy is None:
            # What is refused or after the logged text has no id: whether the lookup finds anything is modelled, as no.
            self._need_hazard(session, "lookup", len(answer))
            return Drafted([], [], 1)
        context = [*session.prompt, *answer]
        tokens = looked_up(context, step=step, room=session.room, rule=self._lookup)
        places = []
        for token, own in zip(tokens, state.trunk[len(answer) :], strict=False):
            on_trunk = on_trunk and token == own
            places.append(ON_TRUNK if on_trunk else OFF_TRUNK)
        return Drafted(tokens, places)

    # -- judging

    def judged(self, session: Session, step: Verify, level: int) -> Judged:
        """See `RecordedAnswers`; the target keeps what is its own text, then writes the next token of it."""
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
        return made(Judged, (accepted, own_token, ON_TRUNK, (nan,) * num_looked_at, num_modelled, (), None))

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
