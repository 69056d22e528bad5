"""Operations of a run, one request at a time, priced and written down many at once.

An operation that equals an earlier one in all but its time is the same row of a table. Letters: N operations.
"""

import numpy as np

from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.results import Forward
from ...runs.ledger import RunLedger
from ..charges import row_draft_forwards, total_s
from ..cost.base import CostModel
from .automaton import Lead

MOST_WAITING = 1 << 16  # operations before they are written down
MOST_ROWS = 1 << 17  # of the table before it is begun anew

# kind, level, num_forwards, new_tokens, asked, drafted, judged, accepted, own, emitted, modelled, prefill
_Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int]
_FIELDS = (
    "kind", "level", "num_forwards", "new_tokens", "asked", "drafted", "judged", "accepted", "own", "emitted",
    "modelled", "prefill",
)  # fmt: skip


class OpRows:
    """Takes operations in the order in which they run, and tells the ledger.

    Args:
        cost: seconds.
        names: of the members by level.
        num_free: model-free members, which come first.
        decide_s: seconds that a policy is charged for each step.
        ledger: told of requests, operations and steps.
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
        self._seconds: list[float] = []
        self._priced: list[Lead] = []
        self._ops: list[int] = []
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
            row = lead.priced.get(num_committed)
            ops.append(self._price(lead, num_committed) if row is None else row)

    def flush(self) -> None:
        """Tell the ledger of all that waits."""
        count = len(self._ops)
        if count:
            index = np.array(self._ops)
            columns = dict(zip(_FIELDS, np.array(self._rows)[index].T, strict=True))
            clock = np.zeros(2 * count + 1)
            clock[0] = self._now_s
            clock[1::2] = np.where(columns["prefill"], 0.0, self._decide_s)
            clock[2::2] = np.array(self._seconds)[index]
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
        if len(self._rows) > MOST_ROWS:
            self._forget_prices()

    def _admit(self, ends_s: list[float]) -> None:
        """Requests start when as many operations have run as come before them."""
        for (request_id, tag, num_prompt), first in zip(self._requests, self._first_ops, strict=True):
            at_s = ends_s[first]
            self._ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=at_s, now_s=at_s)
        self._num_requests += len(self._requests)

    def _price(self, lead: Lead, num_committed: int) -> int:
        """Write a row for what is met for the first time; returns its index."""
        op, due = lead.op, lead.due
        name = self._names[op.level]
        new, held = lead.new_tokens, lead.held + num_committed
        if lead.whole:
            new, held = new + num_committed, 0
        forwards: list[Forward]
        if op.level < self._num_free:
            forwards, seconds = [], self._cost.lookup_s * 1
        elif op.drafts:
            forwards = row_draft_forwards(self._cost, name, new, held, op.drafted)
            seconds = total_s(forwards)
        else:
            seconds = self._cost.forward_s(name, num_rows=1, new_tokens=new, context_tokens=held)
            forwards = [(1, new, 1, seconds)]
        kind = DRAFT if op.drafts else VERIFY
        num_forwards = sum(repeats for _, fed, repeats, _ in forwards if fed)
        num_fed = sum(repeats * fed for _, fed, repeats, _ in forwards)
        judged = 0 if op.drafts else op.judged
        # fmt: off
        self._rows.append((
            kind, op.level, num_forwards, num_fed, op.window, op.drafted, judged, op.accepted, op.own, lead.emitted,
            op.modelled, due.prefill,
        ))
        # fmt: on
        self._seconds.append(seconds)
        self._priced.append(lead)
        lead.priced[num_committed] = len(self._rows) - 1
        return len(self._rows) - 1

    def _forget_prices(self) -> None:
        for lead in self._priced:
            lead.priced.clear()
        for table in (self._rows, self._seconds, self._priced):
            table.clear()
