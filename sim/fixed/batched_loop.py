"""Several requests at a time, each a walk in its trie: the loop's order, without its sessions and views.

What runs next, who shares an operation and who is admitted when are as in `decoding.loop.Loop` and `simulate`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.results import Forward
from ...decoding.session import Session
from ..charges import row_draft_forwards, rows_draft_forwards, total_s
from ..tries.request_tables import RequestTables
from .automaton import Due, Lead, Pending
from .batch_rows import BatchRows
from .closed_loop import WalkedRun
from .trie_walk import TrieWalk, check_progress


@dataclass(slots=True, eq=False)
class _Running:
    """A request that runs.

    Attributes:
        session: of the world.
        recorded: what it replays.
        walk: where it stands.
        index: by order of admission.
        state: what is pending.
        position: tokens committed.
        idle: steps in a row of which nothing came.
    """

    session: Session
    recorded: RequestTables
    walk: TrieWalk
    index: int
    state: Pending
    position: int = 0
    idle: int = 0


_Item = tuple[_Running, Due]


class BatchedLoop:
    """Requests of a recording, so many at a time.

    Args:
        run: what is replayed.
        batch: requests that run at a time, >= 1.
    """

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
        """Let every ready request wait for the operation that it wants."""
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
        new, held = sum([row[0] for row in fed]), sum([row[1] for row in fed])
        seconds = cost.forward_s(name, num_rows=len(fed), new_tokens=new, context_tokens=held)
        return VERIFY, level, [(len(fed), new, 1, seconds)], seconds
