"""Rounds of one recorded request, played by the session and the answers that any other policy meets."""

from ...decoding.contract import Verify
from ...decoding.session import Session
from ..recorded_answers import RecordedAnswers, Replayed
from .play import Fixed, play
from .round import Round


class SteppedRequest:
    """Plays rounds in any order; see `FixedRounds`.

    Args:
        fixed: the policy.
        answers: of the recording.
        session_id: under which these know the request.
        replayed: how it begins.
    """

    def __init__(self, fixed: Fixed, answers: RecordedAnswers, session_id: str, replayed: Replayed) -> None:
        self._fixed = fixed
        self._answers = answers
        self._session_id = session_id
        self._replayed = replayed
        self._step, self._level = Verify(fixed.pool.target), fixed.pool.target_level
        # The answer as far as it was asked for; a place more than tokens, the one before the first.
        self._tokens: list[int] = []
        self._places = [replayed.place]

    def round(self, position: int, room: int) -> Round:
        """The round at a place of the answer; raises as `play`, and ValueError beyond the answer's end."""
        self._write(position)
        session = self.session(position + room)
        session.emitted = self._tokens[:position]
        session.place = self._places[position]
        return play(self._fixed, session, self._answers)

    def tokens(self, position: int, count: int) -> list[int]:
        """What stands there in the answer."""
        self._write(position + count)
        return self._tokens[position : position + count]

    def session(self, budget: int) -> Session:
        """The request before it begins, with so many tokens to write."""
        replayed = self._replayed
        return Session(
            pool=self._fixed.pool,
            request_id=self._session_id,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=budget,
            eos=replayed.eos,
            ending=replayed.ending,
            prefill_before=(False,) * len(self._fixed.pool.members),
        )

    def _write(self, count: int) -> None:
        """Let the target write the answer up to `count` tokens."""
        tokens = self._tokens
        if len(tokens) >= count:
            return
        session = self.session(self._replayed.budget)
        session.emitted, session.place = tokens, self._places[-1]
        while len(tokens) < count:
            if session.done:
                raise ValueError(f"position must be within the recorded answer of {len(tokens)} tokens")
            judged = self._answers.judged(session, self._step, self._level)
            tokens.append(judged.own_token)
            self._places.append(judged.own_place)
            session.place = judged.own_place
