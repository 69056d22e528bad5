"""Rounds of recorded requests under a policy that decides only by pending tokens, each played once per recording.

A round then follows from the recorded request, the position in its answer where it begins, and the room; modelled
decisions are drawn for the recorded request too. The room matters only where it cuts something: a round with room for
all of its steps is that of any request with as much.

The policy becomes an automaton: it decides once in each state, however often a request reaches it, and sees only the
pending tokens. States also have the contents of each member's cache, which follow from the steps: so each transition
has fixed tokens fed. Letters: L levels.

Rounds are walked in the request's trie where all is recorded. Otherwise (a stop rule, a lookup, a context beyond the
record) they use `answers`, as in any replay.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..decoding.legal_steps import IDLE_STEPS, Policy, check_step
from ..decoding.pool import Pool
from ..decoding.results import made
from ..decoding.rules import NO_SIGNAL
from ..decoding.seen import Observation, ServerLoad
from ..decoding.session import Session
from ..decoding.steps import Draft, Outcome, PolicyError, Step, Verify
from ..policies.about import check_runs, decides_by_pending, members_run_by
from .contexts_answers import UNKNOWN, TrieAnswers
from .recorded import RecordedAnswers, Replayed

SHOWN = ("found_nothing", "has_room", "num_pending", "pool", "waiting")
_ITS_OWN = frozenset(("_session", *SHOWN))


class ByPendingView(Observation):
    """A view of one request with the attributes that `About.by_pending` allows.

    Raises:
        ValueError: from reading any other attribute; the loop names the policy.
    """

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        if name in _ITS_OWN or name.startswith("__"):
            return super().__getattribute__(name)
        raise ValueError(
            f"a policy that says by_pending may look at {', '.join(SHOWN)} of what it sees, and not at {name}"
        )


class FixedOp(NamedTuple):
    """One operation of the request."""

    level: int  # of the member that runs
    drafts: bool  # whether it drafts; else it verifies
    window: int  # tokens of the step, 0 for a verification
    asked: int  # of these, as many as there is room for
    drafted: int  # tokens drafted
    pending: int  # tokens before it
    first: int  # index of the first pending token that a verification judges; of a draft `pending`
    # Tokens of a verification, both as in `steps.Outcome`
    accepted: int
    own: int
    modelled: int  # decisions that were modelled rather than replayed

    @property
    def judged(self) -> int:
        """Pending tokens that a verification judges."""
        return self.pending - self.first


class PlayedRound(NamedTuple):
    """Everything from one commit by the target to the next. Equal rounds of an `Automaton` are one object."""

    ops: tuple[FixedOp, ...]  # at least one; the last is a verification by the target, and the only one
    committed: int  # tokens committed, >= 1
    ends: bool  # whether the segment ends with it
    # least room for the same round, with any more too; more than it had where the room cut it
    needs: int


@dataclass(slots=True, eq=False)
class Fixed:
    """A policy with `by_pending`, and its pool."""

    policy: Policy  # that decides
    name: str  # of it, for errors
    pool: Pool  # its members
    drafter: str = ""  # of its drafts, once it has drafted; "" before
    runs: frozenset[str] | None = field(init=False)  # its `About.runs`

    def __post_init__(self) -> None:
        self.runs = members_run_by(self.policy)

    def check(self, step: object, request_id: str) -> None:
        """Raise PolicyError for what `by_pending` rules out, or `runs`."""
        try:
            check_runs(self.runs, step)
        except ValueError as error:
            raise PolicyError(self.name, request_id, step, str(error)) from error
        if isinstance(step, Draft):
            self.drafter = self.drafter or step.model
            if step.model == self.drafter:
                return
            rule = f"all its drafts are by one member, {self.drafter} so far"
        elif getattr(getattr(step, "rule", None), "lossless", False):
            return
        else:
            rule = "its steps are drafts and verifications by lossless rules"
        raise PolicyError(self.name, request_id, step, f"a policy that says by_pending promises that {rule}")


# Tokens in a member's cache, counted from the end of the committed text, so perhaps negative; None: none yet.
Cached = tuple[int | None, ...]
MOST = 1 << 20  # above any number of tokens of a step


@dataclass(slots=True, eq=False)
class Pending:
    """Pending tokens, and the steps due with them."""

    # Levels of drafter and judge of each pending token
    drafters: tuple[int, ...]
    judges: tuple[int, ...]
    cached: Cached  # `[L]` see `Cached`
    found_nothing: bool  # whether the step before was an empty draft
    # The steps due with and without room, made on demand
    open: "Due | None" = None
    full: "Due | None" = None


@dataclass(slots=True, eq=False)
class Due:
    """The policy's step in a state."""

    state: Pending  # the state
    step: Draft | Verify  # the step
    level: int  # of the member
    window: int  # tokens to draft; 0 for a verification
    first: int  # index of the first judged token; of a draft the number of pending ones
    walked: bool  # whether a recorded trie gives its outcome, where all is recorded
    prefill: int = 0  # 1 of the loop's own step
    # by outcome, its lead: `((modelled x MOST + asked) x MOST + count) x 2 + own`
    leads: dict[int, "Lead"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lead:
    """The outcome of a step, and the state after it; shared by all requests."""

    due: Due  # the step
    op: FixedOp  # as in a round
    emitted: int  # tokens that it committed
    idle: bool  # whether nothing changed
    after: Pending  # the state then
    new_tokens: int  # fed to its first forward, in addition to the whole committed text where `whole`
    held: int  # in the cache then, counted as `Cached`
    whole: bool  # whether the cache is empty
    number: int  # its index in `Automaton.leads`


class Automaton:
    """States, steps and rounds, made when reached.

    Attributes:
        leads: all leads so far.
        bare: the state without pending or cached tokens, of a request that begins without a prefill.
        prefilled: the lead of the prefill, in which the target reads the prompt and writes the first token.
    """

    def __init__(self, fixed: Fixed) -> None:
        self._fixed = fixed
        self._target = fixed.pool.target_level
        self._states: dict[tuple[object, ...], Pending] = {}
        self._steps: dict[tuple[object, ...], tuple[Draft | Verify, int]] = {}
        # Their number depends on windows and rejections, not on the length of the recording.
        self._rounds: dict[tuple[bool, tuple[Lead, ...]], PlayedRound] = {}
        self._equal: dict[PlayedRound, PlayedRound] = {}
        self.leads: list[Lead] = []
        self.bare = self._state((), (), (None,) * len(fixed.pool.members))
        prefill = Due(self.bare, Verify(fixed.pool.target), self._target, 0, 0, walked=True, prefill=1)
        self.prefilled = self.lead(prefill, own=1)

    def due(self, state: Pending, *, has_room: bool) -> Due:
        """The policy's step; raises the policy's errors, and those of its step."""
        found = state.open if has_room else state.full
        if found is not None:
            return found
        key = (state.drafters, state.judges, state.found_nothing, has_room)
        asked = self._steps.get(key)
        if asked is None:
            asked = self._steps[key] = self._ask(state, has_room)
        step, level = asked
        window = step.tokens if isinstance(step, Draft) else 0
        first = len(state.judges)
        if not window:
            unjudged = (index for index, judge in enumerate(state.judges) if judge < level)
            first = 0 if level == self._target else next(unjudged, first)
        walked = level >= self._fixed.pool.num_free and not (isinstance(step, Draft) and step.stop is not None)
        found = Due(state, step, level, window, first, walked)
        if has_room:
            state.open = found
        else:
            state.full = found
        return found

    def lead(self, due: Due, *, asked: int = 0, count: int = 0, own: int = 0, modelled: int = 0) -> Lead:
        """The lead of an outcome: `count` tokens were drafted or accepted; all else as of `FixedOp`."""
        key = ((modelled * MOST + asked) * MOST + count) * 2 + own
        found = due.leads.get(key)
        if found is None:
            found = due.leads[key] = self._lead(due, asked, count, own, modelled)
        return found

    def round(self, path: Sequence[Lead], *, ends: bool) -> PlayedRound:
        """The round of these leads; `ends`: the segment ends with it."""
        key = ends, tuple(path)
        found = self._rounds.get(key)
        if found is None:
            ops, committed = tuple([lead.op for lead in path]), path[-1].emitted
            # With room only for its committed tokens, the segment would end.
            needs = max(committed + 1, *(op.pending + max(op.window, 1) for op in ops))
            new = PlayedRound(ops, committed, ends, needs)
            found = self._rounds[key] = self._equal.setdefault(new, new)
        return found

    def _ask(self, state: Pending, has_room: bool) -> tuple[Draft | Verify, int]:
        pool, count = self._fixed.pool, len(state.judges)
        session = Session(
            pool=pool, request_id="", tag="", prompt=(0,), budget=count + (1 if has_room else 0), eos=frozenset()
        )
        session.tokens, session.places = [0] * count, [0] * count
        session.drafters, session.judges = list(state.drafters), list(state.judges)
        if state.found_nothing:
            draft = Draft(self._fixed.drafter, 1)
            session.last = made(Outcome, ("", draft, 0, 0, 0, 0, 0, None, (), 0.0, 1, False, 0))
        step: Step = self._fixed.policy.decide(
            ByPendingView(session, ServerLoad(len(pool.members)), lambda *_: NO_SIGNAL)
        )
        level = check_step(session, step)
        self._fixed.check(step, "")
        assert isinstance(step, Draft | Verify)
        return step, level

    def _lead(self, due: Due, asked: int, count: int, own: int, modelled: int) -> Lead:
        state, level = due.state, due.level
        pending, drafted, accepted = len(state.judges), count if due.window else 0, 0 if due.window else count
        if due.window:
            after, emitted = self._after_draft(due, drafted), 0
        elif level == self._target:
            emitted = accepted + own
            after = self._after_commit(due, accepted, emitted)
        else:
            after, emitted = self._after_judgement(due, accepted, own), 0
        held, whole = state.cached[level], state.cached[level] is None
        if not due.window and held is not None:
            held = min(held, -1 if level == self._target else due.first - 1)
        lead = Lead(
            due=due,
            op=FixedOp(level, due.window > 0, due.window, asked, drafted, pending, due.first, accepted, own, modelled),
            emitted=emitted,
            idle=not (drafted or own or emitted or due.first < pending),
            after=after,
            new_tokens=pending - (held or 0),
            held=held or 0,
            whole=whole,
            number=len(self.leads),
        )
        self.leads.append(lead)
        return lead

    def _after_draft(self, due: Due, drafted: int) -> Pending:
        state, level = due.state, due.level
        drafters, judges = state.drafters + (level,) * drafted, state.judges + (level,) * drafted
        cached = state.cached
        if drafted and level >= self._fixed.pool.num_free:
            cached = _replaced(cached, level, len(judges) - 1)
        return self._state(drafters, judges, cached, found_nothing=not drafted)

    def _after_judgement(self, due: Due, accepted: int, own: int) -> Pending:
        state, level, kept = due.state, due.level, due.first + accepted
        by_level = (level,) * own
        judges = tuple(max(judge, level) for judge in state.judges[:kept])
        cached = _replaced(_rolled_back(state.cached, kept), level, kept)
        return self._state(state.drafters[:kept] + by_level, judges + by_level, cached)

    def _after_commit(self, due: Due, accepted: int, emitted: int) -> Pending:
        cached = _replaced(_rolled_back(due.state.cached, accepted), due.level, accepted)
        return self._state((), (), tuple(None if held is None else held - emitted for held in cached))

    def _state(
        self, drafters: tuple[int, ...], judges: tuple[int, ...], cached: Cached, *, found_nothing: bool = False
    ) -> Pending:
        key = (drafters, judges, cached, found_nothing)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = Pending(drafters, judges, cached, found_nothing)
        return found


def _replaced(cached: Cached, level: int, held: int) -> Cached:
    return (*cached[:level], held, *cached[level + 1 :])


def _rolled_back(cached: Cached, limit: int) -> Cached:
    return tuple(None if held is None else min(held, limit) for held in cached)


def leads_of(automaton: Automaton, answers: RecordedAnswers, session: Session, state: Pending) -> list[Lead]:
    """The leads of a session from a state on, up to the next commit by the target; the session takes these steps."""
    path: list[Lead] = []
    idle = 0
    while True:
        room = session.room
        due = automaton.due(state, has_room=room > 0)
        step, level = due.step, due.level
        if isinstance(step, Draft):
            free = level < answers.num_free
            row = answers.looked_up(session, step) if free else answers.drafted(session, step, level)
            outcome = session.drafted(step, level, row, duration_s=0.0, num_rows=1)
            asked = min(due.window, room)
            lead = automaton.lead(due, asked=asked, count=outcome.num_drafted, modelled=row.num_modelled)
        else:
            judged = answers.judged(session, step, level)
            outcome = session.judged(step, level, judged, duration_s=0.0, num_rows=1)
            accepted, own = outcome.num_accepted, outcome.num_own
            lead = automaton.lead(due, count=accepted, own=own, modelled=judged.num_modelled)
        path.append(lead)
        assert outcome.num_emitted == lead.emitted, "the end of a text drops no other token than the target's own"
        if outcome.num_emitted:
            return path
        idle = idle + 1 if lead.idle else 0
        check_progress(idle)
        state = lead.after


class SteppedRequest:
    """Plays rounds in any order; see `FixedRounds`.

    The answers replay the request in the session `session_id`; `replayed` is its start.
    """

    def __init__(
        self, automaton: Automaton, pool: Pool, answers: RecordedAnswers, session_id: str, replayed: Replayed
    ) -> None:
        self._automaton, self._pool = automaton, pool
        self._answers = answers
        self._session_id = session_id
        self._replayed = replayed
        self._step, self._level = Verify(pool.target), pool.target_level
        # The answer as far as it was needed; one place more than tokens, that before the first.
        self._tokens: list[int] = []
        self._places = [replayed.place]

    def round(self, position: int, room: int) -> PlayedRound:
        """The round at a position of the answer; raises as `TrieWalk.round`."""
        self._write(position)
        session = self.session(position + room)
        session.emitted = self._tokens[:position]
        session.place = self._places[position]
        path = leads_of(self._automaton, self._answers, session, self._automaton.bare)
        return self._automaton.round(path, ends=session.done)

    def tokens(self, position: int, count: int) -> list[int]:
        """`count` tokens of the answer from a position on."""
        self._write(position + count)
        return self._tokens[position : position + count]

    @property
    def length(self) -> int:
        """Tokens that the target alone writes, >= 1; all of them are judged again."""
        session = self.session(self._replayed.budget)
        while not session.done:
            judged = self._answers.judged(session, self._step, self._level)
            session.judged(self._step, self._level, judged, duration_s=0.0, num_rows=1)
        return len(session.emitted)

    def session(self, budget: int) -> Session:
        """The request before it begins, with a budget."""
        bare = (False,) * len(self._pool.members)
        return self._replayed._replace(budget=budget).session(self._pool, self._session_id, bare)

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
    """Raise ValueError for too many steps in a row without effect."""
    if idle_steps >= IDLE_STEPS:
        raise ValueError(f"no progress in {idle_steps} steps: nothing was drafted or judged")


class TrieWalk:
    """A walk through a request that the answers replay in a session, to its end or round by round in any order.

    Attributes:
        length: tokens of the recorded answer.
        is_whole: whether that is recorded to its end; else it cannot be walked.
    """

    def __init__(self, automaton: Automaton, answers: TrieAnswers, session: Session) -> None:
        tables = answers.recorded(session.request_id)
        self._automaton, self._answers, self._session, self._tables = automaton, answers, session, tables
        self._tokens: list[int] = []
        self._places: list[int] = []
        self._eos, self._trunk, self._text = session.eos, tables.trunk, tables.trunk_tokens
        self._position, self._budget, self._target = 0, session.budget, session.pool.target_level
        written = session.until_end(self._text[: session.budget])
        self.length = len(written)
        self.is_whole = len(written) == session.budget or (bool(written) and written[-1] in self._eos)

    def paths(self) -> Iterator[list[Lead]]:
        """The leads of the whole request, commit by commit, from its prefill on; the session then has its text."""
        state, position, budget = self._automaton.bare, 0, self._session.budget
        if self._session.prefills_first:
            yield [self._automaton.prefilled]
            state, position = self._automaton.prefilled.after, 1
        while position < self.length:
            path = self.leads(state, position, budget)
            yield path
            state, position = path[-1].after, position + path[-1].emitted
        self._session.emitted = self._text[:position]

    def round(self, position: int, room: int) -> PlayedRound:
        """The round at a position of the answer.

        Raises:
            ValueError: beyond the answer's end.
            Exception: any error of a step, which does not name its request.
        """
        budget = position + room
        self._check(position + 1)
        path = self.leads(self._automaton.bare, position, budget)
        return self._automaton.round(path, ends=position + path[-1].emitted >= min(budget, self.length))

    def tokens(self, position: int, count: int) -> list[int]:
        """`count` tokens of the answer from a position on."""
        self._check(position + count)
        return self._text[position : position + count]

    def _check(self, position: int) -> None:
        if position > self.length:
            raise ValueError(f"position must be within the recorded answer of {self.length} tokens")

    def leads(self, state: Pending, position: int, budget: int) -> list[Lead]:
        """The leads from a position of the answer, with nothing pending, up to the next commit by the target.

        Args:
            state: with the contents of caches.
            position: committed tokens, below `length`.
            budget: tokens that the answer may have, above `position`, at most the recorded budget.
        """
        self._tokens.clear()
        self._places.clear()
        self._position, self._budget = position, budget
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
        return due.leads.get((asked * MOST + drafted) * 2) or self._automaton.lead(due, asked=asked, count=drafted)

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
        """A verifier below the target kept `kept` pending tokens, and adds one where there is room."""
        tokens, places = self._tokens, self._places
        del tokens[kept:], places[kept:]
        own = 0
        if self._position + kept < self._budget and not (tokens and tokens[-1] in self._eos):
            tokens.append(own_token)
            places.append(own_place)
            own = 1
        accepted = kept - due.first
        lead = None if modelled else due.leads.get(accepted * 2 + own)
        return lead or self._automaton.lead(due, count=accepted, own=own, modelled=modelled)

    def _commit(self, due: Due) -> Lead:
        """The target keeps tokens of its own text, which is recorded."""
        tokens, position = self._tokens, self._position
        accepted = 0
        for token, written in zip(tokens, self._text[position : position + len(tokens)], strict=False):
            if token != written:
                break
            accepted += 1
        own = 1 if position + accepted < min(self._budget, self.length) else 0
        return due.leads.get(accepted * 2 + own) or self._automaton.lead(due, count=accepted, own=own)

    # -- what the recording has to be asked

    def _ask_draft(self, due: Due, asked: int) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Draft)
        free = due.level < self._answers.num_free
        row = self._answers.looked_up(session, step) if free else self._answers.drafted(session, step, due.level)
        self._tokens += row.tokens
        self._places += row.places
        return self._automaton.lead(due, asked=asked, count=len(row.tokens), modelled=row.num_modelled)

    def _ask_judge(self, due: Due) -> Lead:
        session, step = self._standing(due.state), due.step
        assert isinstance(step, Verify)
        row = self._answers.judged(session, step, due.level)
        return self._keep(due, due.first + row.num_accepted, row.own_token, row.own_place, row.num_modelled)

    def _standing(self, state: Pending) -> Session:
        """The session in this state; it shares these tokens and places, which must not be changed through it."""
        session, position = self._session, self._position
        session.budget, session.emitted = self._budget, self._text[:position]
        session.place = self._trunk[position]
        session.tokens, session.places = self._tokens, self._places
        session.drafters, session.judges = list(state.drafters), list(state.judges)
        return session


MOST_KEPT = 1 << 18  # rounds of recorded requests that were not used lately
MOST_OPEN = 64  # recorded requests whose tables are held; a request is played to its end at first use


@dataclass(slots=True, eq=False)
class _Known:
    # by position, the round of all with the room that it needs
    wide: dict[int, PlayedRound] = field(default_factory=dict)
    # by position and room, rounds cut by the room
    narrow: dict[tuple[int, int], PlayedRound] = field(default_factory=dict)


class _Open(NamedTuple):
    """A recorded request that can be played."""

    session_id: str  # in which the answers replay it
    budget: int  # tokens that its answer may have
    rounds: TrieWalk | SteppedRequest  # stepped where its trie does not suffice


class FixedRounds:
    """Plays rounds, and keeps those of the recorded requests used last.

    The policy must have `About.by_pending`, else ValueError; `name` is for errors. Sessions of the answers begin with
    the target's prefill, as served ones do.
    """

    def __init__(self, *, policy: Policy, name: str, pool: Pool, answers: RecordedAnswers) -> None:
        if not decides_by_pending(policy):
            raise ValueError(f"policy {name} does not say that pending tokens alone decide (About.by_pending)")
        self._pool, self._answers = pool, answers
        self._automaton = Automaton(Fixed(policy, name, pool))
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lengths: dict[str, int] = {}
        self._num_kept = 0

    def round(self, recorded_id: str, position: int, room: int) -> PlayedRound:
        """The next round of a request at a position of a recorded answer, with nothing pending.

        Args:
            recorded_id: of the replayed request.
            position: committed tokens of the recorded answer, >= 0; 0 where its segment begins and no prefill is due.
            room: tokens that its segment may still have, >= 1.

        Raises:
            KeyError: an unknown request.
            ValueError: a position or room outside the recorded answer.
            Exception: any error of a step, which does not name its request.
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
        budget, rounds = played.budget, played.rounds
        if position < 0 or room < 1 or position + room > budget:
            raise ValueError(
                f"position must be >= 0, room >= 1 and both together at most {budget}, got {position} and {room}"
            )
        found = rounds.round(position, room)
        self._keep(known, position, room, found)
        if isinstance(rounds, TrieWalk):
            self._play_on(known, rounds, position + found.committed, budget)
        while self._num_kept > MOST_KEPT and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._num_kept -= len(gone.wide) + len(gone.narrow)
        return found

    def tokens(self, recorded_id: str, position: int, count: int) -> list[int]:
        """Tokens that rounds commit: `count` of a recorded answer from `position` on; raises as `round`."""
        return self._opened(recorded_id).rounds.tokens(position, count)

    def length(self, recorded_id: str) -> int:
        """Tokens that the target alone writes in answer to a request; raises as `round`."""
        found = self._lengths.get(recorded_id)
        if found is None:
            found = self._lengths[recorded_id] = self._opened(recorded_id).rounds.length
        return found

    def _opened(self, recorded_id: str) -> _Open:
        found = self._open.get(recorded_id)
        if found is not None:
            self._open.move_to_end(recorded_id)
            return found
        # Different from that of any served request, or of other rounds on the same answers.
        session_id = f"\0{id(self)} {recorded_id}"
        replayed = self._answers.replay(session_id, recorded_id)
        stepped = SteppedRequest(self._automaton, self._pool, self._answers, session_id, replayed)
        walk = self._walk(stepped.session(replayed.budget))
        found = self._open[recorded_id] = _Open(session_id, replayed.budget, walk or stepped)
        if len(self._open) > MOST_OPEN:
            _, gone = self._open.popitem(last=False)
            self._answers.release(gone.session_id)
        return found

    def _walk(self, session: Session) -> TrieWalk | None:
        answers = self._answers
        if type(answers) is not TrieAnswers:  # a subclass may answer otherwise
            return None
        walk = TrieWalk(self._automaton, answers, session)
        return walk if walk.is_whole else None

    def _play_on(self, known: _Known, walk: TrieWalk, position: int, budget: int) -> None:
        """Play the next rounds with enough room, up to one already known."""
        while (
            position < walk.length and position not in known.wide and (position, budget - position) not in known.narrow
        ):
            try:
                found = walk.round(position, budget - position)
            except Exception:  # noqa: BLE001 - raised again where it is reached
                return
            self._keep(known, position, budget - position, found)
            position += found.committed

    def _keep(self, known: _Known, position: int, room: int, found: PlayedRound) -> None:
        if room < found.needs:
            known.narrow[position, room] = found
        else:
            known.wide[position] = found
        self._num_kept += 1


class SharedRounds:
    """The rounds of policies, shared by equal ones (`are_equal`) and by runs of the same answers."""

    def __init__(self, pool: Pool, answers: RecordedAnswers) -> None:
        self._pool, self._answers = pool, answers
        self._made: list[tuple[Policy, FixedRounds]] = []

    def of(self, policy: Policy, name: str) -> FixedRounds:
        """Rounds of a policy; raises as `FixedRounds`."""
        for other, rounds in self._made:
            if are_equal(policy, other):
                return rounds
        rounds = FixedRounds(policy=policy, name=name, pool=self._pool, answers=self._answers)
        self._made.append((policy, rounds))
        return rounds


def are_equal(policy: Policy, other: Policy) -> bool:
    """Whether two policies are known to be of the same class with equal attributes."""
    ours, theirs = getattr(policy, "__dict__", None), getattr(other, "__dict__", None)
    has_slots = any(getattr(kind, "__slots__", ()) for kind in type(policy).__mro__)  # with attributes outside `vars`
    if type(policy) is not type(other) or ours is None or has_slots:
        return False
    try:
        return bool(ours == theirs)
    except ValueError:  # arrays: == is not a bool
        return False
