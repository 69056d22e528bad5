"""The only caller of policies: asks each ready request for its step, batches equal steps, feeds outcomes back.

No clock and no I/O: whoever drives the loop (a SimPy device process, a runtime) says what time it is.
Letters: B requests of one operation.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .contract import Commit, Draft, Outcome, Policy, PolicyError, Step, Verify
from .estimates import Estimates
from .observation import Load, Observation
from .pool import Pool
from .session import Drafted, Judged, Session
from .signal import Signal

# Steps in a row that may leave a request as it was (a model-free drafter that finds nothing) before it is an error.
IDLE_STEPS = 8

Group = tuple[int, bool]  # (level, is a Verify)
Order = Callable[[list[Group]], Group]


class Item(NamedTuple):
    """One request's part in an operation."""

    session: Session
    step: Draft | Verify


class Op(NamedTuple):
    """One batched operation: the same kind of step by the same member, for B requests.

    Attributes:
        level: the member that runs.
        verify: a Verify; else a Draft.
        items: `[B]`.
    """

    level: int
    verify: bool
    items: list[Item]


# Forwards of one shape inside an operation: requests in each, tokens fed in each over all rows, how many in a row, and
# seconds of one. A plain tuple: replay makes two for every step.
Forward = tuple[int, int, int, float]


class Results(NamedTuple):
    """What a world did: per item a Drafted or a Judged, and the seconds it took."""

    rows: Sequence[Drafted | Judged]
    forwards: list[Forward]
    duration_s: float


class World(Protocol):
    """Where operations happen: a recording (sim) or models (runtime)."""

    def open(self, session: Session) -> None:
        """Prepare a request: set `session.place` to the place of its prompt."""
        ...

    def execute(self, op: Op) -> Results:
        """Carry out an operation. Mutates nothing of the sessions but `place`, where replay goes back to the trunk."""
        ...

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        ...

    def close(self, session: Session) -> None:
        """Release what the world holds for a request that is done."""
        ...


class Ledger(Protocol):
    """Where a loop writes down what happened, in plain numbers."""

    def note_op(
        self,
        verify: bool,
        level: int,
        num_rows: int,
        num_forwards: int,
        new_tokens: int,
        start_s: float,
        duration_s: float,
    ) -> None:
        """An operation finished."""
        ...

    def note_step(
        self,
        request_id: str,
        verify: bool,
        level: int,
        asked: int,
        drafted: int,
        judged: int,
        accepted: int,
        own: int,
        emitted: int,
        modelled: int,
        end_s: float,
    ) -> None:
        """A step of one request finished, behind the `note_op` it was part of."""
        ...

    def note_commit(self, request_id: str, level: int, emitted: int, end_s: float) -> None:
        """A Commit took `emitted` pending tokens as they were."""
        ...


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

    def admit(self, session: Session) -> None:
        """Take a request in; raises ValueError if its id is already running."""
        if session.request_id in self._views:
            raise ValueError(f"request {session.request_id} is already running")
        self._world.open(session)
        self._views[session.request_id] = Observation(session, self.load, self.estimates, self._world.signal)
        self._ready.append(session)
        self.load.num_running += 1

    def next_op(self, now_s: float) -> Op | None:
        """Ask every ready request and return the operation to run next; None when no request is left.

        Raises:
            PolicyError: the policy raised, returned an illegal step or makes no progress.
        """
        self.load.now_s = now_s
        groups = self._groups
        ready = self._ready
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
            if not groups and not ready:
                return Op(level, verify, [item])
            groups.setdefault((level, verify), []).append(item)
        if not groups:
            return None
        key = next(iter(groups)) if len(groups) == 1 else self._order(list(groups))
        return Op(key[0], key[1], groups.pop(key))

    def finish(self, op: Op, results: Results, *, start_s: float, now_s: float) -> None:
        """Turn what the world did into new session states and tell the policy. Done sessions go to `finished`."""
        self.load.now_s = now_s
        level, verify, items = op
        num_rows = len(items)
        self.load.batch[level] = num_rows
        rows, forwards, duration_s = results
        wanted = self.estimates.wanted
        if wanted:
            self.estimates.note_forwards(level, forwards)
        num_forwards = new_tokens = 0
        for _, new, repeats, _ in forwards:
            num_forwards += repeats
            new_tokens += repeats * new
        self._ledger.note_op(verify, level, num_rows, num_forwards, new_tokens, start_s, duration_s)
        for (session, step), row in zip(items, rows, strict=True):
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
                row.num_modelled,
                now_s,
            )
            self._feed_back(session, outcome)

    def _ask(self, session: Session) -> tuple[Step, int]:
        self.load.now_s += self._decide_s
        try:
            step = self._policy.decide(self._views[session.request_id])
        except (Exception, SystemExit) as error:  # a policy is foreign code; whatever it raises ends the run by name
            raise PolicyError(self._name, session.request_id, None, f"decide raised {error!r}") from error
        try:
            return step, session.check(step)
        except (ValueError, AttributeError, TypeError) as error:
            raise PolicyError(self._name, session.request_id, step, str(error)) from error

    def _feed_back(self, session: Session, outcome: Outcome) -> None:
        try:
            self._policy.learn(outcome)
        except (Exception, SystemExit) as error:  # foreign code, as above
            raise PolicyError(self._name, session.request_id, outcome.step, f"learn raised {error!r}") from error
        if outcome.done:
            self._views.pop(session.request_id)
            self._world.close(session)
            self.load.num_running -= 1
            self.finished.append(session)
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
            raise PolicyError(
                self._name,
                session.request_id,
                outcome.step,
                f"no progress in {idle} steps: nothing was drafted or judged",
            )
