"""The only caller of policies: gets a step for each ready request, batches equal steps, feeds outcomes back.

No clock and no I/O: the caller (a SimPy device process, a runtime) passes the time. The prefill, in which the target
writes a request's first token, is the loop's own operation: no policy decides it or gets its outcome. Letter: B
requests of one operation.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..base.errors import pass_interrupt
from .legal_steps import Policy, breach, check_step, guard_progress, raised
from .pool import Pool
from .results import (
    DRAFT,
    TREE,
    VERIFY,
    Deferred,
    DraftResults,
    Failed,
    Ledger,
    OverlapResults,
    Parted,
    PartRun,
    Ran,
    Results,
    Rows,
    VerifyResults,
    all_ran,
    committed_record,
    drafted_record,
    judged_record,
    made,
    op_record,
    part_record,
)
from .seen import Observation, Prefills, ServerLoad
from .session import Session
from .steps import Commit, Draft, Outcome, PolicyError, Step, Verify
from .world import DRAFTS, OVERLAPS, TREES, VERIFIES, Op, VerifyItem, WaitingOps, World, check_known

Items = list[tuple[Session, Any]]

# Operations in a row, beyond one per request, that a world may defer whole before a request fails for it.
DEFERRED_OPS = 8


class Loop:
    """Decides what runs next on one device.

    Args:
        policy: decides every step; one object for all requests.
        name: of the policy, for errors.
        world: where sessions are opened and pending tokens read.
        ledger: gets a record of every operation and step.
        decide_s: seconds that a decision takes, by the number of running requests; `next_op` advances `load.now_s` by
            them. None: none.
        view: what policies see of a request.
        by_hand: steps are given one at a time: `next_op` returns after a Commit, which is no operation.

    Attributes:
        load: what policies see of the server. The caller sets `num_waiting`, the loop all else.
        finished, failed: requests that are done, and those that failed with their errors; the caller takes them out.
        decided_s: seconds that all decisions so far took.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        policy: Policy,
        name: str,
        world: World,
        ledger: Ledger,
        decide_s: Callable[[int], float] | None = None,
        view: type[Observation] = Observation,
        by_hand: bool = False,
    ) -> None:
        self.pool = pool
        self.load = ServerLoad(len(pool.members))
        self.finished: list[Session] = []
        self.failed: list[tuple[Session, Exception]] = []
        self._policy = policy
        self._name = name
        self._world = world
        self._ledger = ledger
        self.decided_s = 0.0
        self._decide_s = decide_s
        self._each_s = 0.0  # of a decision in this `next_op`
        self._view = view
        self._by_hand = by_hand
        self._ready: deque[Session] = deque()
        self._waiting = WaitingOps()
        self._views: dict[str, Observation] = {}
        self._idle: dict[str, int] = {}
        self._withdrawn: set[str] = set()
        self._prefills = Prefills(pool)
        self._deferred_ops = 0

    def admit(self, session: Session) -> None:
        """Take a request in; raises ValueError if its id is already running."""
        item = self.admit_apart(session)
        if self._prefills.due_first(session):
            self._waiting.join(self.pool.target_level, *item)
        else:
            self._ready.append(session)

    def admit_apart(self, session: Session) -> VerifyItem:
        """Take in a request whose prefill the caller runs, in chunks for example; raises as `admit`.

        Its policy decides only after `finish` was called with an operation of the target that holds the returned item.
        """
        request_id = session.request_id
        if request_id in self._views:
            raise ValueError(f"request {request_id} is already running")
        if request_id not in self._withdrawn:
            self._world.open(session)
        self._withdrawn.discard(request_id)
        session.policy_name = self._name
        self._views[request_id] = self._view(session, self.load, self._world.signal)
        self.load.num_running += 1
        self.load.context_tokens += session.num_prompt + len(session.emitted)
        return session, self._prefills.step

    def withdraw(self, session: Session) -> None:
        """Preempt a running request: drop its pending tokens until it is admitted again; its world keeps it open.

        Its policy gets no outcome; at its next decision `last` is None. No operation returned before may be finished
        with it.
        """
        self._drop(session)
        session.drop_pending()
        session.last = None
        self._forget(session)
        self._withdrawn.add(session.request_id)

    def give_up(self, session: Session) -> None:
        """Drop a running request for good, in any state: its world closes it, its policy gets no outcome."""
        self._drop(session)
        self._leave(session)

    def next_op(self, now_s: float) -> Op | None:
        """Get a step for every ready request and return the operation to run next; None when no request is left.

        None as well where a Commit has just finished requests, so that others can be admitted before the operation
        runs, and with `by_hand` after any Commit.

        Raises PolicyError if the policy raised, returned an illegal step or makes no progress.
        """
        self.load.now_s = now_s
        ready, waiting, prefills = self._ready, self._waiting, self._prefills
        before = len(self.finished)
        if self._decide_s is not None and ready:
            self._each_s = self._decide_s(self.load.num_running)
        while ready:
            session = ready.popleft()
            step, level = self._ask(session)
            if isinstance(step, Commit):
                self._commit(session, step)
                if self._by_hand:
                    break
            elif prefills.undecided and prefills.due_before(session, step, level):
                self._waiting.join(self.pool.target_level, session, prefills.step)
            elif ready or waiting.ops or len(self.finished) > before:
                waiting.join(level, session, step)
            elif isinstance(step, Draft):
                return made(Op, (DRAFTS, level, [(session, step)], ()))
            elif session.tree is None and isinstance(step, Verify):
                return made(Op, (VERIFIES, level, [(session, step)], ()))
            else:
                waiting.join(level, session, step)
        return None if len(self.finished) > before else waiting.pop()

    def finish(self, op: Op, results: Results, *, start_s: float, now_s: float) -> None:
        """Turn what the world did into new session states and pass the outcomes to the policy.

        Done sessions go to `finished`, failed ones to `failed`; deferred rows are held and keep their steps. Raises
        TypeError for a draft that was answered with verdicts, or conversely, and the PolicyError of a row that failed.
        """
        kind, level, _, _ = op
        expected = OverlapResults if kind == OVERLAPS else DraftResults if kind <= TREES else VerifyResults
        if not isinstance(results, expected):
            raise TypeError(f"an operation must be answered with {expected.__name__}, not {type(results).__name__}")
        self.load.now_s = now_s
        self.load.free_kv_share = results.free_kv_share
        items, num_rows = op.items, len(op.items)
        rows: Sequence[Any] = results.rows
        if not all_ran(rows):
            items, rows, num_rows = self._set_aside(level, items, rows)
            if not num_rows:
                return
        self._deferred_ops = 0
        if isinstance(results, OverlapResults):
            self._finish_parts(op, items, rows, results.parts, num_rows, start_s)
            return
        duration_s, prefill, ledger, load = results.duration_s, self._prefills.step, self._ledger, self.load
        self._note_ran(
            VERIFY if kind >= VERIFIES else DRAFT if kind == DRAFTS else TREE, level, num_rows, results, start_s
        )
        for (session, step), row in zip(items, rows):  # noqa: B905 - to be strict costs as much as the rest
            if kind <= TREES:
                outcome = session.drafted(step, level, row, duration_s=duration_s, num_rows=num_rows)
                ledger.note_step(drafted_record(level, step, outcome, row.num_modelled, now_s))
                self._feed_back(session, outcome)
                continue
            if step is prefill:
                outcome = session.prefilled(step, row, duration_s=duration_s, num_rows=num_rows)
            else:
                outcome = session.judged(step, level, row, duration_s=duration_s, num_rows=num_rows)
            load.context_tokens += outcome.num_emitted
            ledger.note_step(judged_record(level, outcome, row.num_modelled, now_s, int(step is prefill)))
            if step is prefill:
                self._begin(session, outcome)
            else:
                self._feed_back(session, outcome)

    def _finish_parts(
        self, op: Op, items: Items, rows: Sequence[Parted], parts: list[PartRun], num_rows: int, start_s: float
    ) -> None:
        """Each part of an Overlap is an operation of its own in the log, the largest member's first."""
        outcomes = [
            session.overlapped(step, row, parts, num_rows=num_rows)
            for (session, step), row in zip(items, rows, strict=True)
        ]
        last = len(parts) - 1
        for number, (level, part) in enumerate(zip(op.levels, parts, strict=True)):
            kind = DRAFT if op.drafts and number == last else VERIFY
            self._note_ran(kind, level, num_rows, part, start_s + part.after_s)
            for each, row in zip(outcomes, rows, strict=True):
                self.load.context_tokens += each[number].num_emitted
                record = part_record(level, number, each[number], row[number].num_modelled, self.load.now_s)
                self._ledger.note_step(record)
        for (session, _), each in zip(items, outcomes, strict=True):
            for outcome in each[:-1]:
                self._tell(outcome)
            self._idle.pop(session.request_id, None)  # a Verify is progress, even if the last part drafted nothing
            self._feed_back(session, each[-1])

    def _begin(self, session: Session, outcome: Outcome) -> None:
        """The prefill is done: the policy decides next, or the step that it gave before is carried out."""
        if outcome.done:
            self._end(session)
        elif (draft := self._prefills.waiting(session.request_id)) is None:
            self._ready.append(session)
        else:  # legal while there is room
            self._waiting.join(check_step(session, draft), session, draft)

    def _commit(self, session: Session, step: Commit) -> None:
        outcome = session.committed(step)
        self.load.context_tokens += outcome.num_emitted
        self._ledger.note_step(committed_record(self.pool.target_level, outcome, self.load.now_s))
        self._feed_back(session, outcome)

    def _note_ran(self, kind: int, level: int, num_rows: int, results: Ran, start_s: float) -> None:
        record = op_record(kind, level, num_rows, results, start_s)
        self.load.note_ran(record)
        self._ledger.note_op(record)

    def _set_aside(self, level: int, items: Items, rows: Rows[Any]) -> tuple[Items, Sequence[Any], int]:
        """Hold deferred rows and drop failed requests; returns the other items and rows, and how many rows ran."""
        ran: Items = []
        results: list[Any] = []
        failed: list[tuple[Session, Exception]] = []
        reason = ""
        for (session, step), row in zip(items, rows, strict=True):
            if isinstance(row, Deferred):
                self._waiting.held.append((level, session, step))
                self._ledger.note_preempted(session.request_id)
                reason = row.reason
            elif isinstance(row, Failed):
                failed.append((session, row.error))
            else:
                ran.append((session, step))
                results.append(row)
        num_ran = len(ran) + len(failed)
        if not num_ran:
            self._deferred_ops += 1
            if self._deferred_ops > self.load.num_running + DEFERRED_OPS:  # else it would defer them for ever
                _, session, _ = self._waiting.held.pop()
                self._fail(session, MemoryError(f"deferred {self._deferred_ops} times while nothing ran: {reason}"))
                self._deferred_ops = 0
        for session, error in failed:
            if isinstance(error, PolicyError):
                raise error
            self._fail(session, error)
        return ran, results, num_ran

    def _fail(self, session: Session, error: Exception) -> None:
        self._ledger.note_failed(session.request_id, str(error) or repr(error), self.load.now_s)
        self.failed.append((session, error))
        self._leave(session)

    def _leave(self, session: Session) -> None:
        """Forget a request that is done or failed; deferred steps wait no longer, as memory was freed."""
        self._forget(session)
        self._world.close(session)
        self._waiting.release()

    def _drop(self, session: Session) -> None:
        self._waiting.drop(session)
        self._ready = deque(other for other in self._ready if other is not session)

    def _forget(self, session: Session) -> None:
        self._views.pop(session.request_id)
        self._idle.pop(session.request_id, None)
        self._prefills.forget(session.request_id)
        self.load.num_running -= 1
        self.load.context_tokens -= session.num_prompt + len(session.emitted)

    def _ask(self, session: Session) -> tuple[Step, int]:
        if self._each_s:
            self.load.now_s += self._each_s
            self.decided_s += self._each_s
        try:
            step = self._policy.decide(self._views[session.request_id])
        except BaseException as error:  # foreign code: any error ends the run and names the policy
            raise raised(self._name, session.request_id, None, "decide", error) from error
        return step, self.check(session, step)

    def check(self, session: Session, step: Step) -> int:
        """The level that would run `step` now; raises PolicyError where it is illegal or unknown to the world."""
        try:
            level = check_step(session, step)
            check_known(self._world, step, level)
            return level
        except BaseException as error:  # a step may be foreign as well
            pass_interrupt(error)
            raise breach(self._policy, self._name, session.request_id, step, error) from error

    def _tell(self, outcome: Outcome) -> None:
        try:
            self._policy.learn(outcome)
        except BaseException as error:  # foreign code, as above
            raise raised(self._name, outcome.request_id, outcome.step, "learn", error) from error

    def _feed_back(self, session: Session, outcome: Outcome) -> None:
        self._tell(outcome)
        if outcome.done:
            self._end(session)
            return
        if not (outcome.num_drafted or outcome.num_judged or outcome.num_own or outcome.num_emitted):
            guard_progress(self._policy, self._name, self._idle, outcome)
        elif self._idle:
            self._idle.pop(session.request_id, None)
        self._ready.append(session)

    def _end(self, session: Session) -> None:
        self.finished.append(session)
        self._leave(session)


def run_loop(loop: Loop, world: World, *, on_finished: Callable[[float], None]) -> None:
    """Run operations, each when the one before it has ended, until the loop has no request left.

    `on_finished` is called with the time when requests have finished (they are in `loop.finished`, from which it takes
    them); it may admit more.
    """
    now_s = 0.0
    while True:
        op = loop.next_op(now_s)
        now_s = loop.load.now_s  # deciding takes time, too
        if loop.finished:  # a Commit finishes requests without an operation
            on_finished(now_s)
        elif op is None:
            return
        if op is None:
            continue
        start_s, results = now_s, op.run(world)
        now_s = start_s + results.duration_s
        loop.finish(op, results, start_s=start_s, now_s=now_s)
        if loop.finished:
            on_finished(now_s)
