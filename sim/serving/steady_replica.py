"""A replica that goes step by step, faster while nobody waits, reads a prompt or is left over.

Then an operation is asked for, answered and learnt from, and nothing else can come of it than tokens: who takes part
is known, whatever is held is held, and nobody looks before the instant until which the replica may run. What is
unusual after all (memory is short, rows that lag, a Commit that ends a request) is left to `Replica`.
"""

from typing import cast

from ...decoding.prefix_cache import NO_COUNTS
from ...decoding.results import Results, made
from ...decoding.steps import Draft, Verify
from ...decoding.world import Op
from ...traces.workloads.arrival import PS_PER_S
from .replica import Going, Replica
from .requests import ServedSession


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
        loop, world, memory, target = self._loop, self._world, self._memory, self._target
        while self._batch.running:
            op, _ = self._asked(now_ps)
            if op is None:  # the last ones have ended, by Commits
                break
            if loop.finished or not self._may_run(op, now_ps):
                self._kept = op
                break
            results, level = op.run(world), op.level
            duration_ps = world.duration_ps
            if now_ps + duration_ps >= until_ps:
                self._begin(op, results, now_ps, now_ps + duration_ps)
                break
            now_ps += duration_ps
            loop.load.free_kv_share = memory.free_share
            num_forwards = loop.take(op, results, now_ps / PS_PER_S)
            if num_forwards:
                self._recorder.busy(self._index, level, duration_ps, 1 if level == target else num_forwards)
            if level == target:
                self._end_step(op, now_ps)
        self._tell_judged()
        return now_ps

    def _begin(self, op: Op, results: Results, now_ps: int, end_ps: int) -> None:
        """Let an operation run that ends when others may look."""
        rows, forwards, duration_s, *_ = results
        told = made(results.__class__, (rows, forwards, duration_s, self._memory.free_share, NO_COUNTS))
        num_forwards = 1 if op.level == self._target else 0
        self._going = made(Going, (op, told, [], [], op.level, num_forwards, now_ps, end_ps))
        self.end_ps = end_ps

    def _may_run(self, op: Op, now_ps: int) -> bool:
        """Whether the operation is as most are: everybody holds enough blocks, or gets them, and lags little."""
        level, target, fed, is_short = op.level, self._target, 0, False
        for session, step in cast(list[tuple[ServedSession, Draft | Verify]], op.items):
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
