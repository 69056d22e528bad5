"""Rounds of recorded requests under a policy that only pending tokens decide, each played once.

A round then follows from the recorded request, the position in its answer where it begins, and the room; decisions that
are modelled are drawn for the recorded request too, so they are the same for all who replay it. And it follows from the
room only where the room cuts something: a round that had room for all that was wanted serves all that have as much.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from ...decoding.contract import PolicyError
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...policies.about import decides_by_pending
from ..recorded_answers import RecordedAnswers, Replayed
from ..tries.answers import TrieAnswers
from ..unrecorded_error import UnrecordedContextError
from .automaton import Automaton
from .play import Fixed
from .round import Round
from .stepped_request import SteppedRequest
from .trie_walk import TrieWalk
from .walked_request import KnownPaths, WalkedRequest

MOST_KEPT = 1 << 18  # rounds of recorded requests that were not asked for lately
MOST_OPEN = 8  # recorded requests whose tables are held; a request is played to its end when it is first asked for


@dataclass(slots=True, eq=False)
class _Known:
    """Rounds of one recorded request.

    Attributes:
        wide: by position, the round of all who have the room that it needs.
        narrow: by position and room, rounds that the room cut.
    """

    wide: dict[int, Round] = field(default_factory=dict)
    narrow: dict[tuple[int, int], Round] = field(default_factory=dict)


class _Open(NamedTuple):
    """A recorded request that can be played; `walked` is None where its trie does not say all of it."""

    replayed: Replayed
    session_id: str
    stepped: SteppedRequest
    walked: WalkedRequest | None


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
        self._automaton = Automaton(self._fixed, answers.num_free)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._num_kept = 0
        # As many as windows and refusals allow, however long the recording.
        self._equal: dict[Round, Round] = {}
        self._paths: KnownPaths = {}

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
        known = self._known.get(recorded_id)
        if known is None:
            known = self._known[recorded_id] = _Known()
        else:
            self._known.move_to_end(recorded_id)
        found = known.wide.get(position)
        if found is None or room < found.needs:
            found = known.narrow.get((position, room))
        if found is not None:
            return found
        played = self._opened(recorded_id)
        found = self._keep(known, position, room, self._played(played, request_id, position, room))
        if played.walked is not None:
            self._go_on(known, played.walked, position + found.committed, played.replayed.budget)
        self._forget()
        return found

    def tokens(self, recorded_id: str, position: int, count: int) -> list[int]:
        """What rounds commit: `count` tokens of a recorded answer from `position` on.

        Raises:
            KeyError, ValueError: as `round`.
        """
        played = self._opened(recorded_id)
        return (played.walked or played.stepped).tokens(position, count)

    def _opened(self, recorded_id: str) -> _Open:
        found = self._open.get(recorded_id)
        if found is not None:
            self._open.move_to_end(recorded_id)
            return found
        # Unlike that of any served request, or of other rounds on the same answers.
        session_id = f"\0{id(self)} {recorded_id}"
        replayed = self._answers.replay(session_id, recorded_id)
        stepped = SteppedRequest(self._fixed, self._answers, session_id, replayed)
        found = self._open[recorded_id] = _Open(replayed, session_id, stepped, self._walked(stepped, replayed))
        if len(self._open) > MOST_OPEN:
            _, gone = self._open.popitem(last=False)
            self._answers.release(gone.session_id)
        return found

    def _walked(self, stepped: SteppedRequest, replayed: Replayed) -> WalkedRequest | None:
        answers = self._answers
        if type(answers) is not TrieAnswers:  # one made of it may answer otherwise
            return None
        walk, session = TrieWalk(self._automaton, answers), stepped.session(replayed.budget)
        recorded = answers.recorded(session.request_id)
        if not walk.begin(session, recorded):
            return None
        return WalkedRequest(self._automaton, walk, recorded.trunk_tokens, self._paths)

    def _played(self, played: _Open, request_id: str, position: int, room: int) -> Round:
        budget = played.replayed.budget
        if position < 0 or room < 1 or position + room > budget:
            raise ValueError(
                f"position must be >= 0, room >= 1 and both together at most {budget}, got {position} and {room}"
            )
        failed: Exception | None = None
        if played.walked is not None:
            try:
                return played.walked.round(position, room)
            except Exception as error:  # noqa: BLE001 - a policy may raise anything
                failed = error
        try:
            found = played.stepped.round(position, room)  # says which step it was
        except PolicyError as error:
            raise PolicyError(error.policy, request_id, error.step, error.reason) from error
        except UnrecordedContextError as error:
            raise type(error)(request_id, *error.args[1:]) from error
        if failed is not None:
            raise failed
        return found

    def _go_on(self, known: _Known, walked: WalkedRequest, position: int, budget: int) -> None:
        """Play what comes next to who has room enough, as long as nobody has been there."""
        while (
            position < walked.length
            and position not in known.wide
            and (position, budget - position) not in known.narrow
        ):
            try:
                found = walked.round(position, budget - position)
            except Exception:  # noqa: BLE001 - whoever comes there is told
                return
            self._keep(known, position, budget - position, found)
            position += found.committed

    def _keep(self, known: _Known, position: int, room: int, found: Round) -> Round:
        found = self._equal.setdefault(found, found)
        if room < found.needs:
            known.narrow[position, room] = found
        else:
            known.wide[position] = found
        self._num_kept += 1
        return found

    def _forget(self) -> None:
        """Let those go that were not asked for the longest."""
        while self._num_kept > MOST_KEPT and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._num_kept -= len(gone.wide) + len(gone.narrow)
