"""Rounds of recorded requests under a policy that only pending tokens decide, each played once.

A round then follows from the recorded request, the position in its answer where it begins, and the room; decisions that
are modelled are drawn for the recorded request too, so they are the same for all who replay it. And it follows from the
room only where the room cuts something: a round that had room for all that was wanted serves all that have as much.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from ...decoding.contract import PolicyError, Verify
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...decoding.session import Session
from ...policies.about import decides_by_pending
from ..recorded_answers import RecordedAnswers, Replayed
from ..unrecorded_error import UnrecordedContextError
from .play import Fixed, play
from .round import Round

MOST_KEPT = 1 << 18  # rounds and tokens of recorded requests that were not asked for lately


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of one recorded request.

    Attributes:
        replayed: how it begins.
        session_id: under which it is answered here.
        tokens, places: of its answer, as far as rounds began or tokens were asked for; `places[i]` is the place before
            token i.
        wide: by position, the round of all who have the room that it needs.
        narrow: by position and room, rounds that the room cut.
    """

    replayed: Replayed
    session_id: str
    tokens: list[int]
    places: list[int]
    wide: dict[int, Round] = field(default_factory=dict)
    narrow: dict[tuple[int, int], Round] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Entries, of any kind."""
        return len(self.tokens) + len(self.wide) + len(self.narrow)


class FixedRounds:
    """Plays rounds, and keeps those of the recorded requests that were asked for last.

    Args:
        policy: says `About.by_pending` of itself.
        name: of it, for errors.
        pool: members of the recording.
        answers: of the recording. Its sessions begin with the target's prefill, as served ones do.

    Raises:
        ValueError: a policy that does not say so.
    """

    def __init__(self, *, policy: Policy, name: str, pool: Pool, answers: RecordedAnswers) -> None:
        if not decides_by_pending(policy):
            raise ValueError(f"policy {name} does not say that pending tokens alone decide (About.by_pending)")
        self._fixed = Fixed(policy, name, pool)
        self._answers = answers
        self._step, self._level = Verify(pool.target), pool.target_level
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0
        self._equal: dict[Round, Round] = {}  # as many as windows and refusals allow, however long the recording

    def round(self, request_id: str, recorded_id: str, position: int, room: int) -> Round:
        """The next round of a request whose answer stands at a place of a recorded one, with nothing pending.

        Args:
            request_id: its own, for errors.
            recorded_id: of the recorded request that it replays.
            position: tokens of the recorded answer that it has committed, >= 0; 0 where its segment begins and no
                prefill is due.
            room: tokens that its segment may still have, >= 1.

        Raises:
            KeyError: the recording does not hold that request.
            ValueError: a position or room outside the recorded answer.
            PolicyError, UnrecordedContextError: see `play`.
        """
        known = self._of(recorded_id)
        found = known.wide.get(position)
        if found is None or room < found.needs:
            found = known.narrow.get((position, room))
        return self._play(known, request_id, position, room) if found is None else found

    def tokens(self, recorded_id: str, position: int, count: int) -> list[int]:
        """What rounds commit: `count` tokens of a recorded answer from `position` on.

        Raises:
            KeyError, ValueError: as `round`.
        """
        known = self._of(recorded_id)
        self._write(known, position + count)
        self._forget()
        return known.tokens[position : position + count]

    def _of(self, recorded_id: str) -> _Known:
        known = self._known.get(recorded_id)
        if known is not None:
            self._known.move_to_end(recorded_id)
            return known
        session_id = f"\0{recorded_id}"  # unlike that of any served request
        replayed = self._answers.replay(session_id, recorded_id)
        known = self._known[recorded_id] = _Known(replayed, session_id, [], [replayed.place])
        return known

    def _play(self, known: _Known, request_id: str, position: int, room: int) -> Round:
        budget = known.replayed.budget
        if position < 0 or room < 1 or position + room > budget:
            raise ValueError(
                f"position must be >= 0, room >= 1 and both together at most {budget}, got {position} and {room}"
            )
        self._write(known, position)
        session = self._session(known, position + room)
        session.emitted = known.tokens[:position]
        session.place = known.places[position]
        try:
            played = play(self._fixed, session, self._answers)
        except PolicyError as error:
            raise PolicyError(error.policy, request_id, error.step, error.reason) from error
        except UnrecordedContextError as error:
            raise type(error)(request_id, *error.args[1:]) from error
        played = self._equal.setdefault(played, played)
        if room < played.needs:
            known.narrow[position, room] = played
        else:
            known.wide[position] = played
        self._size += 1
        self._forget()
        return played

    def _session(self, known: _Known, budget: int) -> Session:
        replayed = known.replayed
        return Session(
            pool=self._fixed.pool,
            request_id=known.session_id,
            tag=replayed.tag,
            prompt=replayed.prompt,
            budget=budget,
            eos=replayed.eos,
            ending=replayed.ending,
            prefill_before=(False,) * len(self._fixed.pool.members),
        )

    def _write(self, known: _Known, count: int) -> None:
        """Let the target write the answer up to `count` tokens."""
        if len(known.tokens) >= count:
            return
        session = self._session(known, known.replayed.budget)
        session.emitted, session.place = known.tokens, known.places[-1]
        while len(known.tokens) < count:
            if session.done:
                raise ValueError(f"position must be within the recorded answer of {len(known.tokens)} tokens")
            self._size += 1
            judged = self._answers.judged(session, self._step, self._level)
            known.tokens.append(judged.own_token)
            known.places.append(judged.own_place)
            session.place = judged.own_place

    def _forget(self) -> None:
        """Let those go that were not asked for the longest."""
        while self._size > MOST_KEPT and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._size -= gone.size
            self._answers.release(gone.session_id)
