"""The loop of a replica, and what it tells: steps are added up, not written down."""

from typing import cast

from ....decoding.contract import Draft, Outcome
from ....decoding.ledger import COMMIT, OpRecord, StepRecord
from ....decoding.loop import Loop
from ....decoding.observation import Observation
from ....decoding.policy import Policy
from ....decoding.pool import Pool
from ....decoding.results import Drafted, Judged, Results
from ....decoding.trees.draft_tree import DraftTree
from ....decoding.world import DraftOp, Op, World


class BatchNotes:
    """A ledger (`decoding.ledger.Ledger`) that keeps sums, those of steps mutated by `ServedLoop`. Letter: L levels.

    Attributes:
        judged: `[L]` (requests, drafted tokens, accepted ones, own ones) since they were taken last; prefills apart.
        num_forwards: of the operation that finished last.
        num_modelled: decisions that were modelled rather than replayed.
        committed: ids of requests with a Commit since they were taken last.
    """

    def __init__(self, num_levels: int) -> None:
        self.judged = [[0, 0, 0, 0] for _ in range(num_levels)]
        self.num_forwards = 0
        self.num_modelled = 0
        self.committed: list[str] = []

    def note_op(self, record: OpRecord) -> None:
        """An operation finished."""
        self.num_forwards = record.num_forwards

    def note_step(self, record: StepRecord) -> None:
        """A Commit finished; of other steps the loop tells no records."""
        assert record.kind == COMMIT
        self.committed.append(record.request_id)

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """Never told: rows that replay answers do not fail."""

    def note_preempted(self, request_id: str) -> None:
        """Never told: a replica puts requests back itself."""

    def take_judged(self, level: int) -> tuple[int, int, int, int]:
        """The sums of a level, which begin anew."""
        num_rows, drafted, accepted, own = self.judged[level]
        self.judged[level] = [0, 0, 0, 0]
        return num_rows, drafted, accepted, own

    def take_committed(self) -> list[str]:
        """The ids, which begin anew."""
        committed, self.committed = self.committed, []
        return committed


class ServedLoop(Loop):
    """A `Loop` whose ledger keeps sums; arguments as there."""

    def __init__(
        self,
        *,
        pool: Pool,
        policy: Policy,
        name: str,
        world: World,
        notes: BatchNotes,
        decide_s: float,
        view: type[Observation],
    ) -> None:
        super().__init__(pool=pool, policy=policy, name=name, world=world, ledger=notes, decide_s=decide_s, view=view)
        self._notes = notes

    def take(self, op: Op, results: Results, now_s: float) -> int:
        """`finish`, of an operation whose rows have all run and none of which is a prefill; returns its forwards.

        The free share of memory is left to the caller.
        """
        level, rows, forwards, duration_s = op.level, results.rows, results.forwards, results.duration_s
        num_rows, num_forwards, new_tokens = len(op.items), 0, 0
        for _, new, repeats, _ in forwards:
            num_forwards += repeats if new else 0
            new_tokens += repeats * new
        load, notes = self.load, self._notes
        load.now_s = now_s
        load.batch[level], load.duration_s[level] = num_rows, duration_s
        load.num_forwards[level], load.new_tokens[level] = num_forwards, new_tokens
        if isinstance(op, DraftOp):
            for (session, draft), drafted in zip(op.items, cast(list[Drafted], rows), strict=True):
                outcome = session.drafted(draft, level, drafted, duration_s=duration_s, num_rows=num_rows)
                notes.num_modelled += drafted.num_modelled
                self._feed_back(session, outcome)
        else:
            for (session, verify), judged in zip(op.items, cast(list[Judged], rows), strict=True):
                outcome = session.judged(verify, level, judged, duration_s=duration_s, num_rows=num_rows)
                self._note_judged(level, judged, outcome, 0)
                self._feed_back(session, outcome)
        return num_forwards

    def _note_drafted(self, level: int, step: Draft | DraftTree, row: Drafted, outcome: Outcome) -> None:
        self._notes.num_modelled += row.num_modelled

    def _note_judged(self, level: int, row: Judged, outcome: Outcome, prefill: int) -> None:
        self.load.context_tokens += outcome.num_emitted
        notes = self._notes
        notes.num_modelled += row.num_modelled
        if not prefill:
            sums = notes.judged[level]
            sums[0] += 1
            sums[1] += outcome.num_judged
            sums[2] += outcome.num_accepted
            sums[3] += outcome.num_own
