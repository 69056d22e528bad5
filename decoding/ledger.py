"""What a loop tells whoever writes a run down: one record per operation and one per step.

Their fields, in this order, are the columns of a run log; every other form is derived from them.
"""

from typing import NamedTuple, Protocol

from .contract import Draft, Outcome
from .results import Ran, made
from .trees.draft_tree import DraftTree

# Kinds of steps and operations.
DRAFT, VERIFY, COMMIT, TREE = range(4)


class OpRecord(NamedTuple):
    """An operation that finished.

    Attributes:
        kind: DRAFT, VERIFY or TREE (a draft of trees).
        level: of the member that ran.
        num_rows: requests in it.
        num_forwards: of the member.
        new_tokens: fed in these, over all rows.
        start_s: seconds since the run began.
        duration_s: seconds.
        asked_tokens, hit_tokens, entered_blocks, evicted_blocks: of the member's prefix cache, as in `PrefixCounts`.
    """

    kind: int
    level: int
    num_rows: int
    num_forwards: int
    new_tokens: int
    start_s: float
    duration_s: float
    asked_tokens: int = 0
    hit_tokens: int = 0
    entered_blocks: int = 0
    evicted_blocks: int = 0


class StepRecord(NamedTuple):
    """A step of one request that finished; tokens are counted as in `contract.Outcome`.

    Attributes:
        request_id: whose step it is.
        kind: DRAFT, VERIFY, TREE, or COMMIT, which is part of no operation.
        level: of the member that ran, the target's for a Commit.
        asked: tokens a Draft asked for, nodes of a whole tree.
        drafted, judged, accepted, own, emitted: tokens.
        modelled: decisions that were modelled rather than replayed or run.
        end_s: seconds since the run began.
        escalated: of the accepted tokens, how many the verifier left to the next one.
        prefill: 1 for the loop's own step, in which the target wrote the first token.
        part: index of this part in an `Overlap`, which has one record for each; 0 for all other steps.
        refused: 1 if a Verify refused a token: of a tree, all nodes beyond the path that stayed, if there were any.
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
    part: int = 0
    refused: int = 0


def op_record(kind: int, level: int, num_rows: int, results: Ran, start_s: float) -> OpRecord:
    """Of an operation in which `num_rows` requests ran."""
    num_forwards = new_tokens = 0
    for _, new, repeats, _ in results.forwards:
        num_forwards += repeats if new else 0
        new_tokens += repeats * new
    seconds, prefixes = results.duration_s, results.prefixes
    return made(OpRecord, (kind, level, num_rows, num_forwards, new_tokens, start_s, seconds, *prefixes))


def drafted_record(
    level: int, step: Draft | DraftTree, outcome: Outcome, num_modelled: int, end_s: float
) -> StepRecord:
    """Of a Draft or a DraftTree by the member at `level`."""
    kind, asked = (DRAFT, step.tokens) if isinstance(step, Draft) else (TREE, step.shape.most_nodes)
    # fmt: off
    return made(StepRecord, (
        outcome.request_id, kind, level, asked, outcome.num_drafted, 0, 0, 0, 0, num_modelled, end_s, 0, 0, 0, 0,
    ))
    # fmt: on


def judged_record(level: int, outcome: Outcome, num_modelled: int, end_s: float, prefill: int) -> StepRecord:
    """Of a Verify by the member at `level`, or of the loop's own prefill (1)."""
    request_id, _, _, judged, accepted, own, emitted, refused_at, _, _, _, _, escalated = outcome
    refused = int(refused_at is not None)
    # fmt: off
    return made(StepRecord, (
        request_id, VERIFY, level, 0, 0, judged, accepted, own, emitted, num_modelled, end_s, escalated, prefill, 0,
        refused,
    ))
    # fmt: on


def part_record(level: int, part: int, outcome: Outcome, num_modelled: int, end_s: float) -> StepRecord:
    """Of the part of an Overlap at this index, which was by the member at `level`."""
    if isinstance(outcome.step, Draft):
        return drafted_record(level, outcome.step, outcome, num_modelled, end_s)._replace(part=part)
    return judged_record(level, outcome, num_modelled, end_s, 0)._replace(part=part)


def committed_record(level: int, outcome: Outcome, end_s: float) -> StepRecord:
    """Of a Commit; `level` is the target's."""
    return StepRecord(outcome.request_id, COMMIT, level, 0, 0, 0, 0, 0, outcome.num_emitted, 0, end_s)


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
