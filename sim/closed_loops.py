"""A recording of contexts replayed without a loop, under a policy that only pending tokens decide.

What `simulate` does by loop, session and policy is done here in bulk: rounds are walked in the tries, and written down
many at once. One request at a time is walked from its start to its end. Of several, what runs next, who shares an
operation and who is admitted when are as in `decoding.loop.Loop` and `simulate`. The log is the same to the bit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ..decoding.legal_steps import Policy
from ..decoding.results import DRAFT, VERIFY, Forward
from ..decoding.session import Session
from ..policies.about import decides_by_pending
from ..runs.log import RunLedger
from .charges import row_draft_forwards, rows_draft_forwards, total_s
from .context_tables import RequestTables
from .contexts import ReplayWorld, TrieTables
from .cost.base import CostModel, held_together
from .played_round import Automaton, Due, Fixed, Lead, Pending
from .replay_tables import RecordedWorld, ReplayTables
from .rounds_once import TrieWalk, check_progress

MOST_WAITING = 1 << 13  # operations before they are written down
MOST_PRICED = 1 << 17  # seconds that are kept before they are asked for anew

# kind, level, num_forwards, new_tokens, asked, drafted, judged, accepted, own, emitted, modelled, prefill, refused
_Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
_FIELDS = (
    "kind", "level", "num_forwards", "new_tokens", "asked", "drafted", "judged", "accepted", "own", "emitted",
    "modelled", "prefill", "refused",
)  # fmt: skip


class OpRows:
    """Takes operations in the order in which they run, and tells the ledger of requests, operations and steps.

    Args:
        names: of the members by level.
        num_free: model-free members, which come first.
        decide_s: seconds that a policy is charged for each step.
    """

    def __init__(
        self, *, cost: CostModel, names: tuple[str, ...], num_free: int, decide_s: float, ledger: RunLedger
    ) -> None:
        self._cost = cost
        self._names = names
        self._num_free = num_free
        self._decide_s = decide_s
        self._ledger = ledger
        self._rows: list[_Row] = []
        self._row_of: dict[Lead, int] = {}  # of what is fed the same however long the text is
        self._priced: list[Lead] = []
        self._ops: list[tuple[int, float]] = []
        self._requests: list[tuple[str, str, int]] = []
        self._first_ops: list[int] = []
        self._num_requests = 0
        self._now_s = 0.0

    def begin(self, request_id: str, tag: str, num_prompt: int) -> None:
        """The next request is there, and starts when the one before it has ended."""
        if len(self._ops) >= MOST_WAITING:
            self.flush()
        self._requests.append((request_id, tag, num_prompt))
        self._first_ops.append(len(self._ops))

    def add(self, path: list[Lead], num_committed: int) -> None:
        """Operations of a round that begins after so many committed tokens of the text, prompt and answer.

        Raises:
            CostRangeError: one that the cost does not know.
        """
        ops = self._ops
        for lead in path:
            ops.append(lead.priced.get(num_committed) or self._price(lead, num_committed))

    def flush(self) -> None:
        """Tell the ledger of all that waits."""
        count = len(self._ops)
        if count:
            rows, seconds = zip(*self._ops, strict=True)
            index = np.array(rows)
            columns = dict(zip(_FIELDS, np.array(self._rows)[index].T, strict=True))
            clock = np.zeros(2 * count + 1)
            clock[0] = self._now_s
            clock[1::2] = np.where(columns["prefill"], 0.0, self._decide_s)
            clock[2::2] = seconds
            # One addition after the other, as a clock goes on.
            at_s = np.add.accumulate(clock)
            ones, none = np.ones(count, np.int8), np.zeros(count, np.int8)
            times = {"start_s": at_s[1::2], "duration_s": clock[2::2]}
            self._admit([self._now_s, *at_s[2::2].tolist()])
            counts = np.diff([*self._first_ops, count])
            request = np.repeat(np.arange(self._num_requests - len(counts), self._num_requests), counts)
            step = {"op": np.arange(count), "request": request, "end_s": at_s[2::2], "escalated": none}
            self._ledger.note_block({**columns, **times, "num_rows": ones}, {**columns, **step})
            self._now_s = float(at_s[-1])
        for waiting in (self._ops, self._requests, self._first_ops):
            waiting.clear()
        if len(self._priced) > MOST_PRICED:
            self._forget_prices()

    def _admit(self, ends_s: list[float]) -> None:
        """Requests start when as many operations have run as come before them."""
        for (request_id, tag, num_prompt), first in zip(self._requests, self._first_ops, strict=True):
            at_s = ends_s[first]
            self._ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=at_s, now_s=at_s)
        self._num_requests += len(self._requests)

    def _price(self, lead: Lead, num_committed: int) -> tuple[int, float]:
        """Row and seconds of what is met for the first time."""
        op, name = lead.op, self._names[lead.op.level]
        new, held = lead.fed(num_committed)
        forwards: list[Forward]
        if op.level < self._num_free:
            forwards, seconds = [], self._cost.lookup_s
        elif op.drafts:
            forwards = row_draft_forwards(self._cost, name, new, held, op.drafted)
            seconds = total_s(forwards)
        else:
            seconds = self._cost.forward_s(name, num_rows=1, new_tokens=new, context_tokens=held)
            forwards = [(1, new, 1, seconds)]
        row = None if lead.whole else self._row_of.get(lead)
        if row is None:
            row = self._row_of[lead] = len(self._rows)
            self._rows.append(_row(lead, forwards))
        self._priced.append(lead)
        priced = lead.priced[num_committed] = (row, seconds)
        return priced

    def _forget_prices(self) -> None:
        for lead in self._priced:
            lead.priced.clear()
        for known in (self._rows, self._row_of, self._priced):
            known.clear()


def _row(lead: Lead, forwards: list[Forward]) -> _Row:
    op = lead.op
    kind, judged = (DRAFT, 0) if op.drafts else (VERIFY, op.judged)
    num_forwards = sum([repeats for _, fed, repeats, _ in forwards if fed])
    num_fed = sum([repeats * fed for _, fed, repeats, _ in forwards])
    # fmt: off
    return (
        kind, op.level, num_forwards, num_fed, op.window, op.drafted, judged, op.accepted, op.own, lead.emitted,
        op.modelled, lead.due.prefill, int(op.accepted < judged),
    )
    # fmt: on


_OP = ("kind", "level", "num_rows", "num_forwards", "new_tokens", "start_s", "duration_s")
_STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted", "modelled", "prefill", "refused")


class BatchRows:
    """Takes operations in the order in which they run, and tells the ledger of operations and steps."""

    def __init__(self, ledger: RunLedger) -> None:
        self._ledger = ledger
        self._kinds: list[tuple[int, ...]] = []
        self._kind_of: dict[Lead, int] = {}
        self._ops: list[tuple[float, ...]] = []
        self._steps: list[int] = []
        self._requests: list[int] = []

    def add(self, op: tuple[int, int, int, int, int, float, float], leads: list[Lead], requests: list[int]) -> None:
        """An operation, as the fields of an `OpRecord`; of each row what came of it and whose it is, by admission."""
        kind_of = self._kind_of
        for lead in leads:
            if lead not in kind_of:
                kind_of[lead] = len(self._kinds)
                self._kinds.append(_step(op[0], lead))
        self._ops.append(op)
        self._steps += [kind_of[lead] for lead in leads]
        self._requests += requests
        if len(self._steps) >= MOST_WAITING:
            self.flush()

    def flush(self) -> None:
        """Tell the ledger of all that waits."""
        if not self._ops:
            return
        ops = dict(zip(_OP, map(np.array, zip(*self._ops, strict=True)), strict=True))
        steps = dict(zip(_STEP, np.array(self._kinds)[self._steps].T, strict=True))
        op = np.repeat(np.arange(len(self._ops)), ops["num_rows"])
        # The same addition that moved the clock on.
        end_s = (ops["start_s"] + ops["duration_s"])[op]
        steps |= {"op": op, "request": np.array(self._requests), "end_s": end_s, "escalated": np.zeros_like(op)}
        self._ledger.note_block(ops, steps)
        for waiting in (self._ops, self._steps, self._requests):
            waiting.clear()


def _step(kind: int, lead: Lead) -> tuple[int, ...]:
    op = lead.op
    judged = 0 if op.drafts else op.judged
    # fmt: off
    return (
        kind, op.level, op.window, op.drafted, judged, op.accepted, op.own, lead.emitted, op.modelled,
        lead.due.prefill, int(op.accepted < judged),
    )
    # fmt: on


def why_looped(policy: Policy, name: str, *, tables: ReplayTables, world: RecordedWorld, cost: CostModel) -> str:
    """Why a run has to go through the loop, in words; "" if its rounds can be walked."""
    if not decides_by_pending(policy):
        return f"policy {name} does not say that pending tokens alone decide"
    if cost.knows_operations:
        return f"cost {cost.name} knows more of operations than their forwards"
    if not isinstance(tables, TrieTables) or type(world) is not ReplayWorld:  # one made of it may answer otherwise
        return f"recording {tables.trace.about.name} is not one of contexts"
    if tables.pool.feature_level is not None:
        return f"what {tables.pool.names[tables.pool.feature_level]} drafts depends on what the target has judged"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedRun:
    """What is replayed without a loop, and who is told."""

    policy: Policy  # says `About.by_pending` of itself
    name: str  # of it, for errors
    tables: TrieTables  # the recording
    world: ReplayWorld  # told of requests that begin and end; what it keeps of them is as after a run of the loop
    cost: CostModel  # seconds
    decide_s: float  # seconds that the policy is charged for each step
    ledger: RunLedger  # told what happens

    def automaton(self) -> Automaton:
        """The policy, to be asked."""
        return Automaton(Fixed(self.policy, self.name, self.tables.pool), self.tables.num_free)


class ClosedLoop:
    """Requests one after another, each walked from its start to its end."""

    def __init__(self, run: WalkedRun) -> None:
        self._tables, self._world = run.tables, run.world
        self._automaton = run.automaton()
        self._walk = TrieWalk(self._automaton, run.world)
        self._rows = OpRows(
            cost=run.cost,
            names=run.tables.pool.names,
            num_free=run.tables.num_free,
            decide_s=run.decide_s,
            ledger=run.ledger,
        )

    def run(self, prefill_before: tuple[bool, ...], outputs: dict[str, list[int]] | None) -> bool:
        """Walk all requests of the recording; False if an answer was not recorded to its end: the run is for the loop.

        `prefill_before` is as in `Session`; `outputs` takes the committed tokens of every request by its id, None drops
        them.

        Raises:
            Exception: whatever is wrong with a step or a forward, with no word on whose it was.
        """
        for session in self._world.sessions(prefill_before):
            recorded = self._tables.of(session.request_id)
            self._world.open(session)
            if not self._walk.begin(session, recorded):
                return False
            self._replay(session, recorded)
            self._world.close(session)
            if outputs is not None:
                outputs[session.request_id] = session.emitted
        self._rows.flush()
        return True

    def _replay(self, session: Session, recorded: RequestTables) -> None:
        walk, rows, num_prompt, budget = self._walk, self._rows, session.num_prompt, session.budget
        rows.begin(session.request_id, session.tag, num_prompt)
        position, state = 0, self._automaton.bare
        if session.prefills_first:
            prefill = self._automaton.prefilled
            rows.add([prefill], num_prompt)
            position, state = 1, prefill.after
        while position < walk.length:
            path = walk.round(state, position, budget)
            rows.add(path, num_prompt + position)
            last = path[-1]
            position += last.emitted
            state = last.after
        session.emitted = recorded.trunk_tokens[:position]


@dataclass(slots=True, eq=False)
class _Running:
    session: Session  # of the world
    recorded: RequestTables  # what it replays
    walk: TrieWalk  # where it stands
    index: int  # by order of admission
    state: Pending  # what is pending
    position: int = 0  # tokens committed
    idle: int = 0  # steps in a row of which nothing came


_Item = tuple[_Running, Due]


class BatchedLoop:
    """Requests of a recording, `batch` >= 1 of them at a time."""

    def __init__(self, run: WalkedRun, batch: int) -> None:
        self._run, self._batch = run, batch
        self._names, self._num_free = run.tables.pool.names, run.tables.num_free
        self._automaton = run.automaton()
        self._rows = BatchRows(run.ledger)
        self._now_s = 0.0
        self._num_admitted = 0
        self._whole = True
        self._ready: list[_Running] = []
        # By level, drafts before verifications: the operation that runs next has the least key.
        self._waiting: dict[int, list[_Item]] = {}

    def run(self, prefill_before: tuple[bool, ...], outputs: dict[str, list[int]] | None) -> bool:
        """See `ClosedLoop.run`."""
        sessions = self._run.world.sessions(prefill_before)
        self._admit(sessions, self._batch)
        while self._whole:
            self._ask()
            if not self._waiting:
                break
            items = self._waiting.pop(min(self._waiting))
            done = self._carry_out(items)
            for running in done:
                session = running.session
                session.emitted = running.recorded.trunk_tokens[: running.position]
                self._run.world.close(session)
                if outputs is not None:
                    outputs[session.request_id] = session.emitted
            self._admit(sessions, len(done))
        self._rows.flush()
        return self._whole

    def _admit(self, sessions: Iterator[Session], count: int) -> None:
        for session in islice(sessions, count):
            recorded = self._run.tables.of(session.request_id)
            self._run.world.open(session)
            walk = TrieWalk(self._automaton, self._run.world)
            self._whole = walk.begin(session, recorded) and self._whole
            now_s = self._now_s
            self._run.ledger.note_admitted(
                session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=now_s, now_s=now_s
            )
            running = _Running(session, recorded, walk, self._num_admitted, self._automaton.bare)
            self._num_admitted += 1
            if session.prefills_first:
                self._join(running, self._automaton.prefill)
            else:
                self._ready.append(running)

    def _ask(self) -> None:
        decide_s = self._run.decide_s
        for running in self._ready:
            self._now_s += decide_s
            state, has_room = running.state, running.walk.room > 0
            due = (state.open if has_room else state.full) or self._automaton.due(state, has_room=has_room)
            self._join(running, due)
        self._ready.clear()

    def _join(self, running: _Running, due: Due) -> None:
        self._waiting.setdefault(2 * due.level + (0 if due.window else 1), []).append((running, due))

    def _carry_out(self, items: list[_Item]) -> list[_Running]:
        """Run an operation; returns the requests that have ended, the others are ready again."""
        automaton = self._automaton
        leads = [automaton.prefilled if due.prefill else running.walk.step(due) for running, due in items]
        kind, level, forwards, seconds = self._priced(items, leads)
        num_forwards = sum([repeats for _, fed, repeats, _ in forwards if fed])
        new_tokens = sum([repeats * fed for _, fed, repeats, _ in forwards])
        op = (kind, level, len(items), num_forwards, new_tokens, self._now_s, seconds)
        self._rows.add(op, leads, [running.index for running, _ in items])
        self._now_s += seconds
        ended = []
        for (running, _), lead in zip(items, leads, strict=True):
            running.state = lead.after
            if lead.idle or running.idle:
                running.idle = running.idle + 1 if lead.idle else 0
                check_progress(running.idle)
            if lead.emitted:
                running.position += lead.emitted
                if running.position >= running.walk.length:
                    ended.append(running)
                    continue
                running.walk.stand(running.position, running.session.budget)
            self._ready.append(running)
        return ended

    def _priced(self, items: list[_Item], leads: list[Lead]) -> tuple[int, int, list[Forward], float]:
        """(kind, level, forwards, seconds) of an operation."""
        level, drafts, cost = leads[0].op.level, leads[0].op.drafts, self._run.cost
        name = self._names[level]
        if level < self._num_free:
            return DRAFT, level, [], cost.lookup_s * len(items)
        fed = [
            (*lead.fed(running.session.num_prompt + running.position), lead.op.drafted)
            for (running, _), lead in zip(items, leads, strict=True)
        ]
        if drafts:
            alone = len(fed) == 1
            forwards = row_draft_forwards(cost, name, *fed[0]) if alone else rows_draft_forwards(cost, name, fed)
            return DRAFT, level, forwards, total_s(forwards)
        new, held = sum([row[0] for row in fed]), held_together(cost, name, [row[1] for row in fed])
        seconds = cost.forward_s(name, num_rows=len(fed), new_tokens=new, context_tokens=held)
        return VERIFY, level, [(len(fed), new, 1, seconds)], seconds
