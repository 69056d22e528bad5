"""Operations of a batch and the steps in them, written down many at once."""

import numpy as np

from ...runs.ledger import RunLedger
from .automaton import Lead
from .op_rows import MOST_WAITING

_OP = ("kind", "level", "num_rows", "num_forwards", "new_tokens", "start_s", "duration_s")
_STEP = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted", "modelled", "prefill", "refused")


class BatchRows:
    """Takes operations in the order in which they run, and tells the ledger.

    Args:
        ledger: told of operations and steps.
    """

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
