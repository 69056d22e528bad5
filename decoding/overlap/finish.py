"""What a loop does with an `Overlap` that a world carried out: new session states, and what is written down of it.

Letters: B requests, P parts.
"""

from collections.abc import Sequence

from ..contract import Outcome
from ..ledger import DRAFT, VERIFY, Ledger, op_record, part_record
from ..observation import Load
from ..results import Parted, PartRun
from .world import OverlapItem, OverlapOp


def finish_parts(
    op: OverlapOp,
    items: Sequence[OverlapItem],
    rows: Sequence[Parted],
    parts: Sequence[PartRun],
    num_rows: int,
    load: Load,
    ledger: Ledger,
    *,
    start_s: float,
) -> list[list[Outcome]]:
    """`[B][P]` outcomes, once sessions are brought up to date and all is written down.

    Args:
        op: that ran.
        items: requests that have answers.
        rows: `[B]` of these.
        parts: `[P]` how each ran; each is an operation of its own in the log.
        num_rows: requests that ran, those that failed among them.
        load: told what ran; knows the time.
        ledger: told of all parts, the largest member's first.
        start_s: of the operation.
    """
    outcomes = [
        session.overlapped(step, row, parts, num_rows=num_rows)
        for (session, step), row in zip(items, rows, strict=True)
    ]
    for number, (level, part) in enumerate(zip(op.levels, parts, strict=True)):
        kind = DRAFT if op.drafts and number == len(parts) - 1 else VERIFY
        record = op_record(kind, level, num_rows, part, start_s + part.after_s)
        load.note_ran(record)
        ledger.note_op(record)
        for each, row in zip(outcomes, rows, strict=True):
            load.context_tokens += each[number].num_emitted
            ledger.note_step(part_record(level, number, each[number], row[number].num_modelled, load.now_s))
    return outcomes
