"""The only caller of policies: asks each ready request for its step, batches equal steps, feeds outcomes back.

No clock and no I/O: whoever drives the loop (a SimPy device process, a runtime) says what time it is.
The prefill, in which the target writes a request's first token, is an operation of the loop's own: no policy is asked
for it and none learns of it.
Letters: B requests of one operation.
"""

from collections import deque
from collections.abc import Callable, Sequence

from .contract import Commit, Outcome, Policy, PolicyError, Step, Verify
from .estimates import Estimates
from .foreign_code import at, decides_at, pass_interrupt, said
from .ledger import Ledger
from .observation import Load, Observation
from .pool import Pool
from .prefill_steps import Prefills
from .results import Drafted, Judged
from .session import Session
from .world import Deferred, Failed, Forward, Item, Op, Results, World

# Steps in a row that may leave a request as it was (a model-free drafter that finds nothing) before it is an error.
IDLE_STEPS = 8
# Operations in a row, beyond one per request, that a world may defer whole before a request fails for it.
DEFERRED_OPS = 8

Group = tuple[int, bool]  # (level, is a Verify)
Order = Callable[[list[Group]], Group]

SET_ASIDE = frozenset((Failed, Deferred))


def lowest_level_first(groups: list[Group]) -> Group:
    """The smallest member runs first, so that the target, the expensive one, meets the largest batch."""
    return min(groups)


class Loop:
    """Decides what runs next on one device.

    Args:
        pool: the members.
        policy: asked for every step; one object for all requests.
        name: of the policy, for errors.
        world: where sessions are opened and pending tokens read.
        ledger: told of every operation and step.
        order: picks among the ready groups.
        decide_s: seconds a decision takes, by which `next_op` moves the clock `load.now_s` on.

    Attributes:
        load: what policies see of the server. `num_waiting` is set by whoever drives the loop, all else by the loop.
        finished: requests that are done, for whoever drives the loop to take out.
        failed: requests that failed, each with its error; likewise.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        policy: Policy,
        name: str,
        world: World,
        ledger: Ledger,
        order: Order = lowest_level_first,
        decide_s: float = 0.0,
    ) -> None:
        self.pool = pool
        self.load = Load(len(pool.members))
        self.estimates = Estimates(pool)
        self.finished: list[Session] = []
        self.failed: list[tuple[Session, Exception]] = []
        self._policy = policy
        self._name = name
        self._world = world
        self._ledger = ledger
        self._order = order
        self._decide_s = decide_s
        self._ready: deque[Session] = deque()
        self._groups: dict[Group, list[Item]] = {}
        self._views: dict[str, Observation] = {}
        self._idle: dict[str, int] = {}
        self._prefills = Prefills(pool)
        self._held: list[tuple[Group, Item]] = []
        self._deferred_ops = 0

    def admit(self, session: Session) -> None:
        """Take a request in; raises ValueError if its id is already running."""
        if session.request_id in self._views:
            raise ValueError(f"request {session.request_id} is already running")
        self._world.open(session)
        self._views[session.request_id] = Observation(session, self.load, self.estimates, self._world.signal)
        self.load.num_running += 1
        if self._prefills.due_first(session):
            self._add_prefill(session)
        else:
            self._ready.append(session)

    def next_op(self, now_s: float) -> Op | None:
        """Ask every ready request and return the operation to run next; None when no request is left.

        Raises:
            PolicyError: the policy raised, returned an illegal step or makes no progress.
        """
        self.load.now_s = now_s
        groups = self._groups
        ready = self._ready
        prefills = self._prefills
        while ready:
            session = ready.popleft()
            step, level = self._ask(session)
            if step.__class__ is Commit:
                outcome = session.committed(step)
                self._ledger.note_commit(
                    session.request_id, self.pool.target_level, outcome.num_emitted, self.load.now_s
                )
                self._feed_back(session, outcome)
                continue
            verify = step.__class__ is Verify
            item = Item(session, step)  # type: ignore[arg-type]
            if prefills.undecided and prefills.due_before(item, level):
                self._add_prefill(session)
                continue
            if not groups and not ready:
                return Op(level, verify, [item])
            groups.setdefault((level, verify), []).append(item)
        if not groups:
            if not self._held:
                return None
            self._release()
        key = next(iter(groups)) if len(groups) == 1 else self._order(list(groups))
        return Op(key[0], key[1], groups.pop(key))

    def finish(self, op: Op, results: Results, *, start_s: float, now_s: float) -> None:
        """Turn what the world did into new session states and tell the policy.

        Done sessions go to `finished`, failed ones to `failed`; deferred rows are held and keep their steps.
        """
        self.load.now_s = now_s
        level, verify, items = op
        rows, forwards, duration_s, self.load.free_kv_share = results
        num_rows = len(items)
        for row in rows:
            if row.__class__ in SET_ASIDE:
                items, rows, num_rows = self._set_aside(op, rows)
                if not num_rows:
                    return
                break
        wanted = self.estimates.wanted
        prefill = self._prefills.step
        self._note_ran(op, num_rows, forwards, start_s, duration_s)
        for (session, step), row in zip(items, rows, strict=True):
            if step is prefill:
                self._finish_prefill(session, row, duration_s, num_rows)  # type: ignore[arg-type]
                continue
            if verify:
                proposers = session.judges[session.first_unjudged(level) :] if wanted else None
                outcome = session.judged(step, level, row, duration_s=duration_s, num_rows=num_rows)  # type: ignore[arg-type]
                if proposers is not None:
                    self.estimates.note_judged(proposers, level, outcome.num_accepted, outcome.tvd)
            else:
                outcome = session.drafted(step, level, row, duration_s=duration_s, num_rows=num_rows)  # type: ignore[arg-type]
            self._ledger.note_step(
                session.request_id,
                verify,
                level,
                0 if verify else step.tokens,  # type: ignore[union-attr]
                outcome.num_drafted,
                outcome.num_judged,
                outcome.num_accepted,
                outcome.num_own,
                outcome.num_emitted,
                row.num_modelled,  # type: ignore[union-attr]
                now_s,
                outcome.num_escalated,
            )
            self._feed_back(session, outcome)

    def _add_prefill(self, session: Session) -> None:
        """Let the target write the first token, together with whatever else it has to verify."""
        self._groups.setdefault((self.pool.target_level, True), []).append(Item(session, self._prefills.step))

    def _finish_prefill(self, session: Session, row: Judged, duration_s: float, num_rows: int) -> None:
        """Take in the first token; the policy is asked next, or what it asked for before is done."""
        outcome = session.prefilled(self._prefills.step, row, duration_s=duration_s, num_rows=num_rows)
        self._ledger.note_prefill(session.request_id, self.pool.target_level, row.num_modelled, self.load.now_s)
        if outcome.done:
            self.finished.append(session)
            self._leave(session)
            return
        item = self._prefills.waiting(session.request_id)
        if item is None:
            self._ready.append(session)
        else:  # a draft, and one is legal as long as there is room
            self._groups.setdefault((session.check(item.step), False), []).append(item)

    def _note_ran(self, op: Op, num_rows: int, forwards: list[Forward], start_s: float, duration_s: float) -> None:
        level, verify, _ = op
        self._deferred_ops = 0
        self.load.batch[level] = num_rows
        self.load.duration_s[level] = duration_s
        if self.estimates.wanted:
            self.estimates.note_forwards(level, forwards)
        num_forwards = new_tokens = 0
        for _, new, repeats, _ in forwards:
            num_forwards += repeats if new else 0
            new_tokens += repeats * new
        self._ledger.note_op(verify, level, num_rows, num_forwards, new_tokens, start_s, duration_s)

    def _set_aside(
        self, op: Op, rows: Sequence[Drafted | Judged | Failed | Deferred]
    ) -> tuple[list[Item], list[Drafted | Judged], int]:
        """Hold deferred rows and let failed requests go; returns the other items and rows, and how many rows ran."""
        items: list[Item] = []
        others: list[Drafted | Judged] = []
        failures: list[tuple[Session, Exception]] = []
        reason = ""
        for item, row in zip(op.items, rows, strict=True):
            if isinstance(row, Deferred):
                self._held.append(((op.level, op.verify), item))
                self._ledger.note_preempted(item.session.request_id)
                reason = row.reason
            elif isinstance(row, Failed):
                failures.append((item.session, row.error))
            else:
                items.append(item)
                others.append(row)
        num_ran = len(items) + len(failures)
        if not num_ran:
            self._guard_memory(reason)
        for session, error in failures:
            self._fail(session, error)
        return items, others, num_ran

    def _guard_memory(self, reason: str) -> None:
        """Fail the latest held request of a world that defers all there is, over and over."""
        self._deferred_ops += 1
        if self._deferred_ops > self.load.num_running + DEFERRED_OPS:
            (_, item) = self._held.pop()
            self._fail(item.session, MemoryError(f"deferred {self._deferred_ops} times while nothing ran: {reason}"))
            self._deferred_ops = 0

    def _release(self) -> None:
        """Put held items back into their groups."""
        for group, item in self._held:
            self._groups.setdefault(group, []).append(item)
        self._held.clear()

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
        self._release()

    def _ask(self, session: Session) -> tuple[Step, int]:
        self.load.now_s += self._decide_s
        try:
            step = self._policy.decide(self._views[session.request_id])
        except BaseException as error:  # a policy is foreign code; whatever it raises ends the run by name
            pass_interrupt(error)
            raise PolicyError(
                self._name, session.request_id, None, f"decide raised {said(error, repr)}{at(error)}"
            ) from error
        try:
            return step, session.check(step)
        except BaseException as error:  # a step may be foreign as well
            pass_interrupt(error)
            raise self._breach(session, step, said(error)) from error

    def _feed_back(self, session: Session, outcome: Outcome) -> None:
        try:
            self._policy.learn(outcome)
        except BaseException as error:  # foreign code, as above
            pass_interrupt(error)
            raise PolicyError(
                self._name, session.request_id, outcome.step, f"learn raised {said(error, repr)}{at(error)}"
            ) from error
        if outcome.done:
            self.finished.append(session)
            self._leave(session)
            return
        if not (outcome.num_drafted or outcome.num_judged or outcome.num_own or outcome.num_emitted):
            self._guard_progress(session, outcome)
        elif self._idle:
            self._idle.pop(session.request_id, None)
        self._ready.append(session)

    def _guard_progress(self, session: Session, outcome: Outcome) -> None:
        idle = self._idle.get(session.request_id, 0) + 1
        self._idle[session.request_id] = idle
        if idle >= IDLE_STEPS:
            raise self._breach(session, outcome.step, f"no progress in {idle} steps: nothing was drafted or judged")

    def _breach(self, session: Session, step: object, rule: str) -> PolicyError:
        """What is wrong with a step; nothing was raised in the policy, so it is named by where it decides."""
        place = decides_at(self._policy)
        return PolicyError(self._name, session.request_id, step, rule if place is None else f"{rule} (decide: {place})")
