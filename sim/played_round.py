"""One round of a policy whose pending tokens alone decide: what it asks for, played once, and as an automaton.

A round is played step by step, by the loop, the session and the answers that any other policy meets; what the policy
sees shows its pending tokens, and an error for anything else. As an automaton the policy is asked about a state once,
however often a request comes to it. States also hold what each member's cache holds, which follows from the steps
alone: so what an operation is fed is known of a transition once and for all. Letters: L levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..decoding.legal_steps import Policy, check_step
from ..decoding.loop import Loop
from ..decoding.pool import Pool
from ..decoding.results import COMMIT, DraftResults, OpRecord, StepRecord, VerifyResults, made
from ..decoding.rules import NO_SIGNAL, Signal
from ..decoding.seen import Observation, ServerLoad
from ..decoding.session import Session
from ..decoding.steps import Draft, Outcome, PolicyError, Step, Verify
from ..decoding.world import DraftItem, VerifyItem
from ..policies.about import check_runs, members_run_by
from .recorded import RecordedAnswers

SHOWN = ("found_nothing", "has_room", "num_pending", "pool", "waiting")
_ITS_OWN = frozenset(("_session", *SHOWN))


class ByPendingView(Observation):
    """A view of one request that shows what `About.by_pending` allows.

    Raises:
        ValueError: from reading anything else of it; the loop says whose policy it was.
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
    window: int  # tokens that the step wants, 0 of a verification
    asked: int  # of these, how many there is room for
    drafted: int  # tokens that came of it
    pending: int  # tokens before it
    first: int  # index of the first pending token that a verification judges; of a draft `pending`
    # Tokens of a verification, both as in `steps.Outcome`
    accepted: int
    own: int
    modelled: int  # decisions that were modelled rather than replayed

    @property
    def judged(self) -> int:
        """Pending tokens that a verification looks at."""
        return self.pending - self.first


class PlayedRound(NamedTuple):
    """Everything from one commit by the target to the next. A value: equal rounds are one object in `FixedRounds`."""

    ops: tuple[FixedOp, ...]  # at least one; the last is a verification by the target, and the only one
    committed: int  # tokens that come out, >= 1
    ends: bool  # whether the segment ends with it
    # room with which, and with any more, it would have come out the same; more than it had where the room cut it
    needs: int

    @classmethod
    def of(cls, ops: Sequence[FixedOp], committed: int, ends: bool) -> "PlayedRound":
        """The round of these operations."""
        # With no more room than for what it commits, the segment would end.
        needs = max(committed + 1, *(op.pending + max(op.window, 1) for op in ops))
        return cls(tuple(ops), committed, ends, needs)


@dataclass(slots=True, eq=False)
class Fixed:
    """A policy that says `by_pending`, and what it is asked with."""

    policy: Policy  # asked
    name: str  # of it, for errors
    pool: Pool  # its members
    drafter: str = ""  # that it drafts with, once it has; "" before
    runs: frozenset[str] | None = field(init=False)  # members that it says it runs

    def __post_init__(self) -> None:
        self.runs = members_run_by(self.policy)

    def check(self, step: object, request_id: str) -> None:
        """Refuse what `by_pending` rules out, or `runs`; raises PolicyError."""
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


def play(fixed: Fixed, session: Session, answers: RecordedAnswers) -> PlayedRound:
    """The round of a session that nothing is pending in; the session has its tokens afterwards.

    Raises:
        PolicyError: the policy broke the contract, or what it says of itself.
        UnrecordedContextError: the answers are strict, and a decision is not recorded.
    """
    playing = _Playing(fixed, answers)
    loop = Loop(
        pool=fixed.pool, policy=fixed.policy, name=fixed.name, world=playing, ledger=playing, view=ByPendingView
    )
    before = len(session.emitted)
    loop.admit(session)
    while len(session.emitted) == before:
        op = loop.next_op(0.0)
        assert op is not None
        loop.finish(op, op.run(playing), start_s=0.0, now_s=0.0)
    return PlayedRound.of(playing.ops, len(session.emitted) - before, bool(loop.finished))


class _Begun(NamedTuple):
    """What is known of an operation before it runs; see `FixedOp`."""

    window: int
    asked: int
    pending: int
    first: int


@dataclass(slots=True, eq=False)
class _Playing:
    fixed: Fixed
    answers: RecordedAnswers
    begun: list[_Begun] = field(default_factory=list)
    ops: list[FixedOp] = field(default_factory=list)

    def open(self, session: Session) -> None:
        """Nothing: the session stands where the round begins."""

    def close(self, session: Session) -> None:
        """Nothing: others may play further rounds."""

    def signal(self, session: Session, index: int) -> Signal:
        """Never asked for: the view shows none."""
        return NO_SIGNAL

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        ((session, step),) = items
        self.fixed.check(step, session.request_id)
        pending = len(session.tokens)
        self.begun.append(_Begun(step.tokens, min(step.tokens, session.room), pending, pending))
        free = level < self.answers.num_free
        row = self.answers.looked_up(session, step) if free else self.answers.drafted(session, step, level)
        return DraftResults([row], [], 0.0)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        ((session, step),) = items
        self.fixed.check(step, session.request_id)
        self.begun.append(_Begun(0, 0, len(session.tokens), session.first_unjudged(level)))
        return VerifyResults([self.answers.judged(session, step, level)], [], 0.0)

    def note_op(self, record: OpRecord) -> None:
        """Nothing: seconds are not known here."""

    def note_step(self, record: StepRecord) -> None:
        if record.kind == COMMIT:
            self.fixed.check("a Commit", record.request_id)
        begun = self.begun[-1]
        self.ops.append(
            FixedOp(
                level=record.level,
                drafts=begun.window > 0,
                window=begun.window,
                asked=begun.asked,
                drafted=record.drafted,
                pending=begun.pending,
                first=begun.first,
                accepted=record.accepted,
                own=record.own,
                modelled=record.modelled,
            )
        )

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """Never called: a recording fails for nobody."""

    def note_preempted(self, request_id: str) -> None:
        """Never called: a recording defers nothing."""


# Tokens that a member's cache holds, counted from the end of what is committed, which may be below it; None: none yet.
Cached = tuple[int | None, ...]
MOST = 1 << 20  # above any number of tokens of a step


@dataclass(slots=True, eq=False)
class Pending:
    """What is pending, and what is due then."""

    # Levels of who drafted and who judged each pending token
    drafters: tuple[int, ...]
    judges: tuple[int, ...]
    cached: Cached  # `[L]` see `Cached`
    found_nothing: bool  # whether the step before was a draft that came back empty
    # What is due with and without room, once somebody came here with it
    open: "Due | None" = None
    full: "Due | None" = None


@dataclass(slots=True, eq=False)
class Due:
    """A step that the policy wants in a state."""

    state: Pending  # the state
    step: Draft | Verify  # the step
    level: int  # of the member
    window: int  # tokens to draft; 0 of a verification
    first: int  # index of the first token that is judged; of a draft how many are pending
    walked: bool  # whether following a recorded trie says what comes of it, where all is recorded
    prefill: int = 0  # 1 of the loop's own step
    # by outcome, where it leads: `((modelled x MOST + asked) x MOST + drafted + accepted) x 2 + own`
    leads: dict[int, "Lead"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lead:
    """What came of a step, and where it leads; of one kind for all requests."""

    due: Due  # the step
    op: FixedOp  # in words of a round
    emitted: int  # tokens that it committed
    idle: bool  # whether nothing came of it
    after: Pending  # the state then
    new_tokens: int  # that its first forward is fed, those of the whole committed text on top where `whole`
    held: int  # what the cache holds then, counted as `Cached`
    whole: bool  # whether the cache holds nothing yet
    # by committed tokens of the text, the row it is written down with and its seconds (`OpRows`)
    priced: dict[int, tuple[int, float]] = field(default_factory=dict)

    def fed(self, num_committed: int) -> tuple[int, int]:
        """(tokens that its first forward is fed, tokens that the cache holds then) after so many committed ones."""
        return (self.new_tokens + num_committed, 0) if self.whole else (self.new_tokens, self.held + num_committed)


class Automaton:
    """States and steps as they are come to; `num_free` counts model-free members, which come first in the pool."""

    def __init__(self, fixed: Fixed, num_free: int) -> None:
        self._fixed = fixed
        self._num_free = num_free
        self._target = fixed.pool.target_level
        self._states: dict[tuple[object, ...], Pending] = {}
        self._steps: dict[tuple[object, ...], tuple[Draft | Verify, int]] = {}
        self._bare = self._state((), (), (None,) * len(fixed.pool.members))
        prefill = Verify(fixed.pool.target)
        self._prefill = Due(self._bare, prefill, self._target, 0, 0, walked=True, prefill=1)

    @property
    def bare(self) -> Pending:
        """Nothing is pending or held: a request that begins without a prefill."""
        return self._bare

    @property
    def prefilled(self) -> Lead:
        """What comes of the prefill."""
        return self.lead(self._prefill, own=1)

    @property
    def prefill(self) -> Due:
        """The target reads the prompt and writes the first token."""
        return self._prefill

    def due(self, state: Pending, *, has_room: bool) -> Due:
        """What the policy wants; raises whatever it raises, or what is wrong with its step."""
        found = state.open if has_room else state.full
        if found is not None:
            return found
        key = (state.drafters, state.judges, state.found_nothing, has_room)
        asked = self._steps.get(key)
        if asked is None:
            asked = self._steps[key] = self._ask(state, has_room)
        step, level = asked
        window = step.tokens if isinstance(step, Draft) else 0
        first = len(state.judges) if window else self._first_unjudged(state, level)
        walked = level >= self._num_free and not (isinstance(step, Draft) and step.stop is not None)
        found = Due(state, step, level, window, first, walked)
        if has_room:
            state.open = found
        else:
            state.full = found
        return found

    def lead(
        self, due: Due, *, asked: int = 0, drafted: int = 0, accepted: int = 0, own: int = 0, modelled: int = 0
    ) -> Lead:
        """Where an outcome leads; its fields as of `FixedOp`."""
        key = ((modelled * MOST + asked) * MOST + drafted + accepted) * 2 + own
        found = due.leads.get(key)
        if found is None:
            found = due.leads[key] = self._lead(due, asked, drafted, accepted, own, modelled)
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
        step: Step = self._fixed.policy.decide(ByPendingView(session, ServerLoad(len(pool.members)), _no_signal))
        level = check_step(session, step)
        self._fixed.check(step, "")
        assert isinstance(step, Draft | Verify)
        return step, level

    def _first_unjudged(self, state: Pending, level: int) -> int:
        if level == self._target:
            return 0
        return next((index for index, judge in enumerate(state.judges) if judge < level), len(state.judges))

    def _lead(self, due: Due, asked: int, drafted: int, accepted: int, own: int, modelled: int) -> Lead:
        state, level = due.state, due.level
        pending = len(state.judges)
        if due.window:
            after, emitted = self._after_draft(due, drafted), 0
        elif level == self._target:
            after, emitted = self._after_commit(due, accepted, own), accepted + own
        else:
            after, emitted = self._after_judgement(due, accepted, own), 0
        held, whole = state.cached[level], state.cached[level] is None
        if not due.window and held is not None:
            held = min(held, -1 if level == self._target else due.first - 1)
        return Lead(
            due=due,
            op=FixedOp(level, due.window > 0, due.window, asked, drafted, pending, due.first, accepted, own, modelled),
            emitted=emitted,
            idle=not (drafted or own or emitted or due.first < pending),
            after=after,
            new_tokens=pending - (held or 0),
            held=held or 0,
            whole=whole,
        )

    def _after_draft(self, due: Due, drafted: int) -> Pending:
        state, level = due.state, due.level
        drafters, judges = state.drafters + (level,) * drafted, state.judges + (level,) * drafted
        cached = state.cached
        if drafted and level >= self._num_free:
            cached = _replaced(cached, level, len(judges) - 1)
        return self._state(drafters, judges, cached, found_nothing=not drafted)

    def _after_judgement(self, due: Due, accepted: int, own: int) -> Pending:
        state, level, kept = due.state, due.level, due.first + accepted
        by_level = (level,) * own
        judges = tuple(max(judge, level) for judge in state.judges[:kept])
        cached = _replaced(_rolled_back(state.cached, kept), level, kept)
        return self._state(state.drafters[:kept] + by_level, judges + by_level, cached)

    def _after_commit(self, due: Due, accepted: int, own: int) -> Pending:
        cached = _replaced(_rolled_back(due.state.cached, accepted), due.level, accepted)
        emitted = accepted + own
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


def _no_signal(session: Session, index: int) -> Signal:
    return NO_SIGNAL
