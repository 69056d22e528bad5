"""What the loop of a replica tells, added up: what members judged, and which requests committed by themselves."""

from ....decoding.ledger import COMMIT, DRAFT, OpRecord, StepRecord


class BatchNotes:
    """A ledger (`decoding.ledger.Ledger`) that keeps sums. Letter: L levels.

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
        """A step finished."""
        self.num_modelled += record.modelled
        kind = record.kind
        if kind == COMMIT:
            self.committed.append(record.request_id)
        elif kind != DRAFT and not record.prefill:
            sums = self.judged[record.level]
            sums[0] += 1
            sums[1] += record.judged
            sums[2] += record.accepted
            sums[3] += record.own

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
