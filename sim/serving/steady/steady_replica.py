"""A replica that goes step by step, faster while nobody waits, reads a prompt or is left over.

Then an operation is asked for, answered and learnt from, and nothing else can come of it than tokens: who takes part
is known, whatever is held is held, and nobody looks before the instant until which the replica may run. What is
unusual after all (memory is short, rows that lag, a Commit that ends a request) is left to `Replica`.
"""

from typing import cast

from ....decoding.contract import Draft
from ....decoding.results import made
from ....decoding.world import Op
from ..clock import to_s
from ..engine.replica import Going, Replica
from ..engine.served_session import ServedSession


class SteadyReplica(Replica):
    """See `Replica`, and the module."""

    def plan(self, now_ps: int, until_ps: int = 0) -> int | None:
        """See `ServedReplica`."""
        if now_ps < until_ps and not self._decide_ps and self._kept is None and self._scheduler.only_decodes:
            now_ps = self._run_on(now_ps, until_ps)
            if self._going is not None:
                return self.end_ps
        return super().plan(now_ps)

    def _run_on(self, now_ps: int, until_ps: int) -> int:
        """Carry out operations that end before `until_ps`.

        Returns:
            When the last one ended. The next one has been asked for, and is kept, or is what runs now.
        """
        loop, notes = self._loop, self._notes
        while self._batch.running:
            op, _ = self._asked(now_ps)
            if op is None:  # the last ones have ended, by Commits
                break
            if loop.finished or not self._may_run(op, now_ps):
                self._kept = op
                break
            going = self._ran(op, now_ps)
            if going.end_ps >= until_ps:
                self._going, self.end_ps = going, going.end_ps
                break
            now_ps = going.end_ps
            assert going.results is not None
            loop.take(op, going.results, to_s(now_ps))
            num_forwards = going.forwards or notes.num_forwards
            if num_forwards:
                self._recorder.busy(self._index, op.level, now_ps - going.start_ps, num_forwards)
            if op.level == self._target:
                self._end_step(op, now_ps)
        self._tell_judged()
        return now_ps

    def _may_run(self, op: Op, now_ps: int) -> bool:
        """Whether the operation is as most are: everybody holds enough blocks, or gets them, and lags little."""
        level, items = op.level, op.items
        target, fed, is_short = self._target, 0, False
        for one, step in items:
            session = cast(ServedSession, one)
            text = session.num_prompt + len(session.emitted)
            context = text + len(session.tokens)
            cached, held = session.cached[level], session.room_held
            fed += context - (cached if cached < text else text - 1)
            most = context + step.tokens if step.__class__ is Draft else context
            if most >= held[level] or most >= held[target]:
                is_short = True
        if fed > self._budget and self._memory.members[level] is not None:
            return False
        if is_short:
            if not self._scheduler.held_by_all(op):
                return False
            self._books.note_state(now_ps)
        return True

    def _ran(self, op: Op, now_ps: int) -> Going:
        """The operation, as it runs from now on."""
        rows, forwards, duration_s, _ = results = op.run(self._world)
        results = made(results.__class__, (rows, forwards, duration_s, self._memory.free_share))
        num_forwards, end_ps = int(op.level == self._target), now_ps + self._world.duration_ps
        return made(Going, (op, results, [], [], op.level, num_forwards, now_ps, end_ps))

    def _end_step(self, op: Op, now_ps: int) -> None:
        """The target has run; see `Replica.commit`."""
        rows = cast(list[ServedSession], [item[0] for item in op.items])
        self._books.note_outputs(rows, now_ps)
        if self._memory.has_caches:
            for session in rows:
                self._memory.commit(session)
        if self._loop.finished:
            self._end_finished(now_ps)
        self._loop.load.free_kv_share = self._memory.free_share
        self._books.note_state(now_ps)
