"""What a loop tells whoever writes a run down: one record per operation and one per step.

Their fields, in this order, are the columns of a run log; every other form is derived from them.
"""

from typing import NamedTuple, Protocol

# Kinds of steps and operations.
DRAFT, VERIFY, COMMIT = range(3)


class OpRecord(NamedTuple):
    """An operation that finished.

    Attributes:
        kind: DRAFT or VERIFY.
        level: of the member that ran.
        num_rows: requests in it.
        num_forwards: of the member.
        new_tokens: fed in these, over all rows.
        start_s: seconds since the run began.
        duration_s: seconds.
    """

    kind: int
    level: int
    num_rows: int
    num_forwards: int
    new_tokens: int
    start_s: float
    duration_s: float


class StepRecord(NamedTuple):
    """A step of one request that finished; tokens are counted as in `contract.Outcome`.

    Attributes:
        request_id: whose step it is.
        kind: DRAFT, VERIFY, or COMMIT, which is part of no operation.
        level: of the member that ran, the target's for a Commit.
        asked: tokens a Draft asked for.
        drafted, judged, accepted, own, emitted: tokens.
        modelled: decisions that were modelled rather than replayed or run.
        end_s: seconds since the run began.
        escalated: of the accepted tokens, how many the verifier left to the next one.
        prefill: 1 for the loop's own step, in which the target wrote the first token.
    """

    request_id: str
    kind: int
    level: int
    asked: int
    drafted: int
    judged: int
    accepted: int
    own: int
    emitted: int
    modelled: int
    end_s: float
    escalated: int = 0
    prefill: int = 0


class Ledger(Protocol):
    """Where a loop writes down what happened."""

    def note_op(self, record: OpRecord) -> None:
        """An operation finished."""
        ...

    def note_step(self, record: StepRecord) -> None:
        """A step finished, after the `note_op` it was part of."""
        ...

    def note_failed(self, request_id: str, error: str, end_s: float) -> None:
        """A request failed, for the reason `error` (never empty), and left the loop unfinished."""
        ...

    def note_preempted(self, request_id: str) -> None:
        """A step of a request did not run, since memory was short; it will be tried again."""
        ...
