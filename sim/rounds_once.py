"""Rounds of recorded requests under a policy that only pending tokens decide, each played once per recording.

A round then follows from the recorded request, the position in its answer where it begins, and the room; modelled
decisions are drawn for the recorded request too. The room counts only where it cuts something: a round that had room
for all that was wanted serves all that have as much.

Rounds are walked in the request's trie: no session and no policy is asked where all that comes up is recorded. What the
trie does not say at once (a stop rule, a lookup, a context beyond the record) the answers are asked, as in any replay.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from ..decoding.legal_steps import IDLE_STEPS, Policy
from ..decoding.pool import Pool
from ..decoding.session import Session
from ..decoding.steps import Draft, PolicyError, Verify
from ..policies.about import decides_by_pending
from .context_tables import RequestTables
from .contexts_answers import UNKNOWN, TrieAnswers
from .played_round import MOST, Automaton, Due, Fixed, Lead, Pending, PlayedRound, play
from .recorded import RecordedAnswers, Replayed, UnrecordedContextError


class SteppedRequest:
    """Plays rounds in any order; see `FixedRounds`.

    The answers know the request under `session_id`; `replayed` is how it begins.
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

    def round(self, position: int, room: int) -> PlayedRound:
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


def check_progress(idle_steps: int) -> None:
    """Raise ValueError after so many steps in a row of which nothing came."""
    if idle_steps >= IDLE_STEPS:
        raise ValueError(f"no progress in {idle_steps} steps: nothing was drafted or judged")


class TrieWalk:
    """A walk through one request after another.

    Attributes:
        length: tokens of the recorded answer, once a request has begun.
    """

    def __init__(self, automaton: Automaton, answers: TrieAnswers) -> None:
        self._automaton = automaton
        self._answers = answers
        self._tokens: list[int] = []
        self._places: list[int] = []
        self.length = 0

    def begin(self, session: Session, tables: RequestTables) -> bool:
        """Stand at the start of a request that the answers know by this session.

        False if its answer is not recorded to its end: then nobody can walk it.
        """
        self._session, self._tables, self._eos = session, tables, session.eos
        self._trunk, self._text = tables.trunk, tables.trunk_tokens
        self._position, self._budget, self._target = 0, session.budget, session.pool.target_level
        written = self._text[: session.budget]
        if self._eos:
            written = session.until_end(written)
        self.length = len(written)
        ends = bool(written) and written[-1] in self._eos
        return ends or len(written) == session.budget

    def round(self, state: Pending, position: int, budget: int) -> list[Lead]:
        """What happens from a place of the answer, with nothing pending, up to the next commit by the target.

        Args:
            state: what caches hold.
            position: tokens that are committed, below `length`.
            budget: tokens that the answer may have, above `position`, at most those it was recorded with.
        """
        self.stand(position, budget)
        idle = 0
        path: list[Lead] = []
        while True:
            room = self.room
            due = (state.open if room else state.full) or self._automaton.due(state, has_room=room > 0)
            lead = self._draft(due, room) if due.window else self._judge(due)
            path.append(lead)
            if lead.emitted:
                return path
            idle = idle + 1 if lead.idle else 0
            check_progress(idle)
            state = lead.after

    def stand(self, position: int, budget: int) -> None:
        """Go to a place of the answer, with nothing pending; arguments as of `round`."""
        self._tokens.clear()
        self._places.clear()
        self._position, self._budget = position, budget

    @property
    def room(self) -> int:
        """Tokens that may still be drafted."""
        tokens = self._tokens
        return 0 if tokens and tokens[-1] in self._eos else self._budget - self._position - len(tokens)

    def _draft(self, due: Due, room: int) -> Lead:
        tokens, places, eos = self._tokens, self._places, self._eos
        asked, before = min(due.window, room), len(tokens)
        if not due.walked:
            return self._ask_draft(due, asked)
        at = places[-1] if places else self._trunk[self._position]
        writes, child = self._tables.next_token[due.level], self._tables.child[due.level]
        for _ in range(asked):
            if at < 0:
                del tokens[before:], places[before:]
                return self._ask_draft(due, asked)
            token = writes[at]
            at = child[at]
            tokens.append(token)
            places.append(at)
            if token in eos:
                break
        drafted = len(tokens) - before
        return due.leads.get((asked * MOST + drafted) * 2) or self._automaton.lead(due, asked=asked, drafted=drafted)

    def _judge(self, due: Due) -> Lead:
        if due.level == self._target:
            return self._commit(due)
        tokens, places, first = self._tokens, self._places, due.first
        at = places[first - 1] if first else self._trunk[self._position]
        writes = self._tables.next_token[due.level]
        kept = first
        for token in tokens[first:]:
            if at < 0:
                return self._ask_judge(due)
            if writes[at] != token:
                if token == UNKNOWN:
                    return self._ask_judge(due)
                break
            at = places[kept]
            kept += 1
        if at < 0:
            return self._ask_judge(due)
        return self._keep(due, kept, writes[at], self._tables.child[due.level][at], 0)

    def _keep(self, due: Due, kept: int, own_token: int, own_place: int, modelled: int) -> Lead:
        """A verifier below the target kept so many of the pending tokens, and adds one where there is room."""
        tokens, places = self._tokens, self._places
        del tokens[kept:], places[kept:]
        own = 0
        if self._position + kept < self._budget and not (tokens and tokens[-1] in self._eos):
            tokens.append(own_token)
            places.append(own_place)
            own = 1
        accepted = kept - due.first
        lead = None if modelled else due.leads.get(accepted * 2 + own)
        return lead or self._automaton.lead(due, accepted=accepted, own=own, modelled=modelled)

    def _commit(self, due: Due) -> Lead:
        """The target keeps what is its own text, which is recorded."""
        tokens, position = self._tokens, self._position
        accepted = 0
        for token, written in zip(tokens, self._text[position : position + len(tokens)], strict=False):
            if token != written:
                break
            accepted += 1
        own = 1 if position + accepted < min(self._budget, self.length) else 0
        return due.leads.get(accepted * 2 + own) or self._automaton.lead(due, accepted=accepted, own=own)

    # -- what the recording has to be asked

    def _ask_draft(self, due: Due, asked: int) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Draft)
        free = due.level < self._answers.num_free
        row = self._answers.looked_up(session, step) if free else self._answers.drafted(session, step, due.level)
        self._tokens += row.tokens
        self._places += row.places
        return self._automaton.lead(due, asked=asked, drafted=len(row.tokens), modelled=row.num_modelled)

    def _ask_judge(self, due: Due) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Verify)
        row = self._answers.judged(session, step, due.level)
        return self._keep(due, due.first + row.num_accepted, row.own_token, row.own_place, row.num_modelled)

    def _standing(self, state: Pending) -> Session:
        """The session as it stands now; it has these tokens and places, and nobody changes them by it."""
        session, position = self._session, self._position
        session.budget, session.emitted = self._budget, self._text[:position]
        session.place = self._trunk[position]
        session.tokens, session.places = self._tokens, self._places
        session.drafters, session.judges = list(state.drafters), list(state.judges)
        return session


# Of a path, whether the segment ends with it: the round that it is.
KnownPaths = dict[tuple[bool, tuple[Lead, ...]], PlayedRound]


class WalkedRequest:
    """Walks rounds in any order; see `FixedRounds`.

    `walk` has begun the request, whose answer is recorded to its end. `paths` are rounds that were come to, here or in
    other requests; added to.

    Attributes:
        length: tokens of the answer.
    """

    def __init__(self, automaton: Automaton, walk: TrieWalk, text: list[int], paths: KnownPaths) -> None:
        self._bare = automaton.bare
        self._walk = walk
        self.length = walk.length
        self._text = text
        self._paths = paths

    def round(self, position: int, room: int) -> PlayedRound:
        """The round at a place of the answer.

        Raises:
            ValueError: beyond the answer's end.
            Exception: whatever is wrong with a step, with no word on whose it was.
        """
        walk, budget = self._walk, position + room
        self._check(position + 1)
        path = tuple(walk.round(self._bare, position, budget))
        ends = position + path[-1].emitted >= min(budget, self.length)
        found = self._paths.get((ends, path))
        if found is None:
            found = self._paths[ends, path] = PlayedRound.of([lead.op for lead in path], path[-1].emitted, ends)
        return found

    def tokens(self, position: int, count: int) -> list[int]:
        """What stands there in the answer."""
        self._check(position + count)
        return self._text[position : position + count]

    def _check(self, position: int) -> None:
        if position > self.length:
            raise ValueError(f"position must be within the recorded answer of {self.length} tokens")


MOST_KEPT = 1 << 18  # rounds of recorded requests that were not asked for lately
MOST_OPEN = 64  # recorded requests whose tables are held; a request is played to its end when it is first asked for


@dataclass(slots=True, eq=False)
class _Known:
    # by position, the round of all who have the room that it needs
    wide: dict[int, PlayedRound] = field(default_factory=dict)
    # by position and room, rounds that the room cut
    narrow: dict[tuple[int, int], PlayedRound] = field(default_factory=dict)


class _Open(NamedTuple):
    """A recorded request that can be played; `walked` is None where its trie does not say all of it."""

    replayed: Replayed
    session_id: str
    stepped: SteppedRequest
    walked: WalkedRequest | None


class FixedRounds:
    """Plays rounds, and keeps those of the recorded requests that were asked for last.

    The policy has to say `About.by_pending` of itself, else ValueError; `name` is for errors. Sessions of the answers
    begin with the target's prefill, as served ones do.
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
        self._equal: dict[PlayedRound, PlayedRound] = {}
        self._paths: KnownPaths = {}

    def round(self, request_id: str, recorded_id: str, position: int, room: int) -> PlayedRound:
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
        """What rounds commit: `count` tokens of a recorded answer from `position` on; raises as `round`."""
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

    def _played(self, played: _Open, request_id: str, position: int, room: int) -> PlayedRound:
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

    def _keep(self, known: _Known, position: int, room: int, found: PlayedRound) -> PlayedRound:
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


class SharedRounds:
    """The rounds of policies of one run: the same for policies of the same class with equal attributes."""

    def __init__(self, pool: Pool, answers: RecordedAnswers) -> None:
        self._pool, self._answers = pool, answers
        self._made: list[tuple[Policy, FixedRounds]] = []

    def of(self, policy: Policy, name: str) -> FixedRounds:
        """Rounds of a policy; raises as `FixedRounds`."""
        for other, rounds in self._made:
            if _are_equal(policy, other):
                return rounds
        rounds = FixedRounds(policy=policy, name=name, pool=self._pool, answers=self._answers)
        self._made.append((policy, rounds))
        return rounds


def _are_equal(policy: Policy, other: Policy) -> bool:
    ours, theirs = getattr(policy, "__dict__", None), getattr(other, "__dict__", None)
    has_slots = any(getattr(kind, "__slots__", ()) for kind in type(policy).__mro__)  # attributes that are not in there
    if type(policy) is not type(other) or ours is None or has_slots:
        return False
    try:
        return bool(ours == theirs)
    except ValueError:  # of arrays, of which nobody can say in a word whether they are equal
        return False
