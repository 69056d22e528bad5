"""Plays a round step by step, by the loop, the session and the answers that any other policy meets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...decoding.contract import Draft, PolicyError
from ...decoding.ledger import COMMIT, OpRecord, StepRecord
from ...decoding.loop import Loop
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...decoding.results import DraftResults, VerifyResults
from ...decoding.rules.signal import NO_SIGNAL, Signal
from ...decoding.session import Session
from ...decoding.world import DraftItem, VerifyItem
from ..recorded_answers import RecordedAnswers
from .pending_view import PendingView
from .round import FixedOp, Round


@dataclass(slots=True, eq=False)
class Fixed:
    """A policy that says `by_pending`, and what it is asked with.

    Attributes:
        policy: asked.
        name: of it, for errors.
        pool: its members.
        drafter: that it drafts with, once it has; "" before.
    """

    policy: Policy
    name: str
    pool: Pool
    drafter: str = ""

    def check(self, step: object, request_id: str) -> None:
        """Refuse what `by_pending` rules out; raises PolicyError."""
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


def play(fixed: Fixed, session: Session, answers: RecordedAnswers) -> Round:
    """The round of a session that nothing is pending in; the session has its tokens afterwards.

    Raises:
        PolicyError: the policy broke the contract, or what it says of itself.
        UnrecordedContextError: the answers are strict, and a decision is not recorded.
    """
    playing = _Playing(fixed, answers)
    loop = Loop(pool=fixed.pool, policy=fixed.policy, name=fixed.name, world=playing, ledger=playing, view=PendingView)
    before = len(session.emitted)
    loop.admit(session)
    while len(session.emitted) == before:
        op = loop.next_op(0.0)
        assert op is not None
        loop.finish(op, op.run(playing), start_s=0.0, now_s=0.0)
    return Round.of(playing.ops, len(session.emitted) - before, bool(loop.finished))


class _Begun(NamedTuple):
    """What is known of an operation before it runs; see `FixedOp`."""

    window: int
    asked: int
    pending: int
    first: int


@dataclass(slots=True, eq=False)
class _Playing:
    """World and ledger of one round of one request."""

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
        """Answer the draft."""
        ((session, step),) = items
        self.fixed.check(step, session.request_id)
        pending = len(session.tokens)
        self.begun.append(_Begun(step.tokens, min(step.tokens, session.room), pending, pending))
        free = level < self.answers.num_free
        row = self.answers.looked_up(session, step) if free else self.answers.drafted(session, step, level)
        return DraftResults([row], [], 0.0)

    def verify(self, level: int, items: Sequence[VerifyItem]) -> VerifyResults:
        """Answer the verification."""
        ((session, step),) = items
        self.fixed.check(step, session.request_id)
        self.begun.append(_Begun(0, 0, len(session.tokens), session.first_unjudged(level)))
        return VerifyResults([self.answers.judged(session, step, level)], [], 0.0)

    def note_op(self, record: OpRecord) -> None:
        """Nothing: seconds are not known here."""

    def note_step(self, record: StepRecord) -> None:
        """Write the operation down."""
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
