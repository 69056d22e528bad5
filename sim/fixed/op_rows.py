"""Operations of a run, one request at a time, priced and written down many at once.

Operations that are equal in all but their seconds are the same row of a table.
"""

import numpy as np

from ...decoding.ledger import DRAFT, VERIFY
from ...decoding.results import Forward
from ...runs.ledger import RunLedger
from ..charges import row_draft_forwards, total_s
from ..cost.base import CostModel
from .automaton import Lead

MOST_WAITING = 1 << 13  # operations before they are written down
MOST_PRICED = 1 << 17  # seconds that are kept before they are asked for anew

# kind, level, num_forwards, new_tokens, asked, drafted, judged, accepted, own, emitted, modelled, prefill, refused
_Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
_FIELDS = (
    "kind", "level", "num_forwards", "new_tokens", "asked", "drafted", "judged", "accepted", "own", "emitted",
    "modelled", "prefill", "refused",
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
        self._row_of: dict[Lead, int] = {}  # of what is fed the same however long the text is
        self._priced: list[Lead] = []
        self._ops: list[tuple[int, float]] = []
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
            ops.append(lead.priced.get(num_committed) or self._price(lead, num_committed))

    def flush(self) -> None:
        """Tell the ledger of all that waits."""
        count = len(self._ops)
        if count:
            rows, seconds = zip(*self._ops, strict=True)
            index = np.array(rows)
            columns = dict(zip(_FIELDS, np.array(self._rows)[index].T, strict=True))
            clock = np.zeros(2 * count + 1)
            clock[0] = self._now_s
            clock[1::2] = np.where(columns["prefill"], 0.0, self._decide_s)
            clock[2::2] = seconds
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
        if len(self._priced) > MOST_PRICED:
            self._forget_prices()

    def _admit(self, ends_s: list[float]) -> None:
        """Requests start when as many operations have run as come before them."""
        for (request_id, tag, num_prompt), first in zip(self._requests, self._first_ops, strict=True):
            at_s = ends_s[first]
            self._ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=at_s, now_s=at_s)
        self._num_requests += len(self._requests)

    def _price(self, lead: Lead, num_committed: int) -> tuple[int, float]:
        """Row and seconds of what is met for the first time."""
        op, name = lead.op, self._names[lead.op.level]
        new, held = lead.fed(num_committed)
        forwards: list[Forward]
        if op.level < self._num_free:
            forwards, seconds = [], self._cost.lookup_s
        elif op.drafts:
            forwards = row_draft_forwards(self._cost, name, new, held, op.drafted)
            seconds = total_s(forwards)
        else:
            seconds = self._cost.forward_s(name, num_rows=1, new_tokens=new, context_tokens=held)
            forwards = [(1, new, 1, seconds)]
        row = None if lead.whole else self._row_of.get(lead)
        if row is None:
            row = self._row_of[lead] = len(self._rows)
            self._rows.append(_row(lead, forwards))
        self._priced.append(lead)
        priced = lead.priced[num_committed] = (row, seconds)
        return priced

    def _forget_prices(self) -> None:
        for lead in self._priced:
            lead.priced.clear()
        for known in (self._rows, self._row_of, self._priced):
            known.clear()


def _row(lead: Lead, forwards: list[Forward]) -> _Row:
    op = lead.op
    kind, judged = (DRAFT, 0) if op.drafts else (VERIFY, op.judged)
    num_forwards = sum([repeats for _, fed, repeats, _ in forwards if fed])
    num_fed = sum([repeats * fed for _, fed, repeats, _ in forwards])
    # fmt: off
    return (
        kind, op.level, num_forwards, num_fed, op.window, op.drafted, judged, op.accepted, op.own, lead.emitted,
        op.modelled, lead.due.prefill, int(op.accepted < judged),
    )
    # fmt: on
