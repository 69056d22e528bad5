"""The only caller of policies: asks each ready request for its step, batches equal steps, feeds outcomes back.

No clock and no I/O: whoever drives the loop (a SimPy device process, a runtime) says what time it is.
The prefill, in which the target writes a request's first token, is an operation of the loop's own: no policy is asked
for it and none learns of it.
Letters: B requests of one operation.
"""

from collections import deque
from collections.abc import Sequence
from typing import TypeGuard, TypeVar

from ..foreign_code import at, decides_at, pass_interrupt, said
from .contract import Commit, Draft, Outcome, PolicyError, Step
from .ledger import COMMIT, DRAFT, VERIFY, Ledger, OpRecord, StepRecord
from .legal_steps import check_step
from .observation import Load, Observation
from .policy import Policy
from .pool import Pool
from .prefill import Prefills
from .results import Deferred, DraftResults, Failed, Judged, Results, Row, VerifyResults, made
from .session import Session
from .world import DraftItem, DraftOp, Op, VerifyItem, VerifyOp, WaitingOps, World

# Steps in a row that may leave a request as it was (a model-free drafter that finds nothing) before it is an error.
IDLE_STEPS = 8
# Operations in a row, beyond one per request, that a world may defer whole before a request fails for it.
DEFERRED_OPS = 8

SET_ASIDE = frozenset((Failed, Deferred))

Item = TypeVar("Item", DraftItem, VerifyItem)


class Loop:
    """Decides what runs next on one device.

    Args:
        pool: the members.
        policy: asked for every step; one object for all requests.
        name: of the policy, for errors.
        world: where sessions are opened and pending tokens read.
        ledger: told of every operation and step.
        decide_s: seconds a decision takes, by which `next_op` moves the clock `load.now_s` on.

    Attributes:
        load: what policies see of the server. `num_waiting` is set by whoever drives the loop, all else by the loop.
        finished: requests that are done, for whoever drives the loop to take out.
        failed: requests that failed, each with its error; likewise.
    """

    def __init__(
        self, *, pool: Pool, policy: Policy, name: str, world: World, ledger: Ledger, decide_s: float = 0.0
    ) -> None:
        self.pool = pool
        self.load = Load(len(pool.members))
        self.finished: list[Session] = []
        self.failed: list[tuple[Session, Exception]] = []
        self._policy = policy
        self._name = name
        self._world = world
        self._ledger = ledger
        self._decide_s = decide_s
        self._ready: deque[Session] = deque()
        self._waiting = WaitingOps()
        self._views: dict[str, Observation] = {}
        self._idle: dict[str, int] = {}
        self._prefills = Prefills(pool)
        self._deferred_ops = 0

    def admit(self, session: Session) -> None:
        """Take a request in; raises ValueError if its id is already running."""
        if session.request_id in self._views:
            raise ValueError(f"request {session.request_id} is already running")
        self._world.open(session)
        self._views[session.request_id] = Observation(session, self.load, self._world.signal)
        self.load.num_running += 1
        if self._prefills.due_first(session):
            self._waiting.join(self.pool.target_level, session, self._prefills.step)
        else:
            self._ready.append(session)

    def next_op(self, now_s: float) -> Op | None:
        """Ask every ready request and return the operation to run next; None when no request is left.

        Raises:
            PolicyError: the policy raised, returned an illegal step or makes no progress.
        """
        self.load.now_s = now_s
        ready, waiting, prefills = self._ready, self._waiting, self._prefills
        while ready:
            session = ready.popleft()
            step, level = self._ask(session)
            if isinstance(step, Commit):
                self._commit(session, step)
            elif prefills.undecided and prefills.due_before(session, step, level):
                self._waiting.join(self.pool.target_level, session, prefills.step)
            elif ready or waiting.drafts or waiting.verifies:
                waiting.join(level, session, step)
            elif isinstance(step, Draft):
                return made(DraftOp, (level, [(session, step)]))
            else:
                return made(VerifyOp, (level, [(session, step)]))
        return waiting.pop()

    def finish(self, op: Op, results: Results, *, start_s: float, now_s: float) -> None:
        """Turn what the world did into new session states and tell the policy.

        Done sessions go to `finished`, failed ones to `failed`; deferred rows are held and keep their steps.

        Raises:
            TypeError: a draft that was answered with verdicts, or the other way about.
        """
        self.load.now_s = now_s
        self.load.free_kv_share = results.free_kv_share
        if isinstance(op, DraftOp) and isinstance(results, DraftResults):
            self._finish_drafts(op, results, start_s)
        elif isinstance(op, VerifyOp) and isinstance(results, VerifyResults):
            self._finish_verifies(op, results, start_s)
        else:
            raise TypeError(f"a {type(op).__name__} must not be answered with {type(results).__name__}")

    def _finish_drafts(self, op: DraftOp, results: DraftResults, start_s: float) -> None:
        level = op.level
        items, rows, num_rows = self._set_aside(level, op.items, results.rows)
        if not num_rows:
            return
        self._note_ran(DRAFT, level, num_rows, results, start_s)
        ledger, now_s, duration_s = self._ledger, self.load.now_s, results.duration_s
        for (session, step), row in zip(items, rows):  # noqa: B905 - to be strict costs as much as the rest
            outcome = session.drafted(step, level, row, duration_s=duration_s, num_rows=num_rows)
            num_drafted, num_modelled = outcome.num_drafted, row.num_modelled
            # fmt: off
            ledger.note_step(made(StepRecord, (
                session.request_id, DRAFT, level, step.tokens, num_drafted, 0, 0, 0, 0, num_modelled, now_s, 0, 0,
            )))
            # fmt: on
            self._feed_back(session, outcome)

    def _finish_verifies(self, op: VerifyOp, results: VerifyResults, start_s: float) -> None:
        level = op.level
        items, rows, num_rows = self._set_aside(level, op.items, results.rows)
        if not num_rows:
            return
        self._note_ran(VERIFY, level, num_rows, results, start_s)
        duration_s, prefill = results.duration_s, self._prefills.step
        for (session, step), row in zip(items, rows):  # noqa: B905 - as above
            if step is prefill:
                outcome = session.prefilled(step, row, duration_s=duration_s, num_rows=num_rows)
                self._note_judged(level, row, outcome, 1)
                self._begin(session, outcome)
            else:
                outcome = session.judged(step, level, row, duration_s=duration_s, num_rows=num_rows)
                self._note_judged(level, row, outcome, 0)
                self._feed_back(session, outcome)

    def _note_judged(self, level: int, row: Judged, outcome: Outcome, prefill: int) -> None:
        request_id, _, _, judged, accepted, own, emitted, _, _, _, _, _, escalated = outcome
        modelled, now_s = row.num_modelled, self.load.now_s
        # fmt: off
        self._ledger.note_step(made(StepRecord, (
            request_id, VERIFY, level, 0, 0, judged, accepted, own, emitted, modelled, now_s, escalated, prefill,
        )))
        # fmt: on

    def _begin(self, session: Session, outcome: Outcome) -> None:
        """The prefill is done: the policy is asked next, or what it asked for before is carried out."""
        if outcome.done:
            self._end(session)
            return
        draft = self._prefills.waiting(session.request_id)
        if draft is None:
            self._ready.append(session)
        else:  # it is legal as long as there is room
            self._waiting.join(check_step(session, draft), session, draft)

    def _commit(self, session: Session, step: Commit) -> None:
        outcome = session.committed(step)
        level, emitted = self.pool.target_level, outcome.num_emitted
        self._ledger.note_step(
            StepRecord(session.request_id, COMMIT, level, 0, 0, 0, 0, 0, emitted, 0, self.load.now_s)
        )
        self._feed_back(session, outcome)

    def _note_ran(self, kind: int, level: int, num_rows: int, results: Results, start_s: float) -> None:
        _, forwards, duration_s, _ = results
        load = self.load
        self._deferred_ops = 0
        load.batch[level] = num_rows
        load.duration_s[level] = duration_s
        num_forwards = new_tokens = 0
        for _, new, repeats, _ in forwards:
            num_forwards += repeats if new else 0
            new_tokens += repeats * new
        self._ledger.note_op(made(OpRecord, (kind, level, num_rows, num_forwards, new_tokens, start_s, duration_s)))

    def _set_aside(
        self, level: int, items: list[Item], rows: Sequence[Row | Failed | Deferred]
    ) -> tuple[list[Item], Sequence[Row], int]:
        """Hold deferred rows and let failed requests go; returns the other items and rows, and how many rows ran."""
        if _all_ran(rows):
            return items, rows, len(items)
        ran: list[Item] = []
        others: list[Row] = []
        failures: list[tuple[Session, Exception]] = []
        reason = ""
        for item, row in zip(items, rows, strict=True):
            session, step = item
            if isinstance(row, Deferred):
                self._waiting.held.append((level, session, step))
                self._ledger.note_preempted(session.request_id)
                reason = row.reason
            elif isinstance(row, Failed):
                failures.append((session, row.error))
            else:
                ran.append(item)
                others.append(row)
        num_ran = len(ran) + len(failures)
        if not num_ran:
            self._guard_memory(reason)
        for session, error in failures:
            self._fail(session, error)
        return ran, others, num_ran

    def _guard_memory(self, reason: str) -> None:
        """Fail the latest held request of a world that defers all there is, over and over."""
        self._deferred_ops += 1
        if self._deferred_ops > self.load.num_running + DEFERRED_OPS:
            _, session, _ = self._waiting.held.pop()
            self._fail(session, MemoryError(f"deferred {self._deferred_ops} times while nothing ran: {reason}"))
            self._deferred_ops = 0

    def _fail(self, session: Session, error: Exception) -> None:
        self._ledger.note_failed(session.request_id, str(error) or repr(error), self.load.now_s)
        self._idle.pop(session.request_id, None)
        self.failed.append((session, error))
        self._leave(session)

    def _leave(self, session: Session) -> None:
        """Forget a request that is done or failed; what it held in memory may do for those that wait."""
        self._views.pop(session.request_id)
        self._prefills.forget(session.request_id)
        self._world.close(session)
        self.load.num_running -= 1
        self._waiting.release()

    def _ask(self, session: Session) -> tuple[Step, int]:
        self.load.now_s += self._decide_s
        try:
            step = self._policy.decide(self._views[session.request_id])
        except BaseException as error:  # a policy is foreign code; whatever it raises ends the run by name
            raise self._raised(session, None, "decide", error) from error
        try:
            return step, check_step(session, step)
        except BaseException as error:  # a step may be foreign as well
            pass_interrupt(error)
            raise self._breach(session, step, said(error)) from error

    def _feed_back(self, session: Session, outcome: Outcome) -> None:
        try:
            self._policy.learn(outcome)
        except BaseException as error:  # foreign code, as above
            raise self._raised(session, outcome.step, "learn", error) from error
        if outcome.done:
            self._end(session)
            return
        if not (outcome.num_drafted or outcome.num_judged or outcome.num_own or outcome.num_emitted):
            self._guard_progress(session, outcome)
        elif self._idle:
            self._idle.pop(session.request_id, None)
        self._ready.append(session)

    def _end(self, session: Session) -> None:
        """A request is done."""
        self.finished.append(session)
        self._leave(session)

    def _guard_progress(self, session: Session, outcome: Outcome) -> None:
        idle = self._idle.get(session.request_id, 0) + 1
        self._idle[session.request_id] = idle
        if idle >= IDLE_STEPS:
            raise self._breach(session, outcome.step, f"no progress in {idle} steps: nothing was drafted or judged")

    def _raised(self, session: Session, step: Step | None, method: str, error: BaseException) -> PolicyError:
        """What a method of the policy raised, and where; Ctrl-C is raised on."""
        pass_interrupt(error)
        return PolicyError(self._name, session.request_id, step, f"{method} raised {said(error, repr)}{at(error)}")

    def _breach(self, session: Session, step: object, rule: str) -> PolicyError:
        """What is wrong with a step; nothing was raised in the policy, so it is named by where it decides."""
        place = decides_at(self._policy)
        return PolicyError(self._name, session.request_id, step, rule if place is None else f"{rule} (decide: {place})")


def _all_ran(rows: Sequence[Row | Failed | Deferred]) -> TypeGuard[Sequence[Row]]:
    """Whether no row failed or was deferred."""
    for row in rows:  # noqa: SIM110 - a generator costs as much as the rest
        if row.__class__ in SET_ASIDE:
            return False
    return True
