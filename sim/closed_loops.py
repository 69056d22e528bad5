"""A recording of contexts replayed one by one without a loop, under a policy that only pending tokens decide.

What `simulate` does by loop, session and policy is done here in bulk: rounds are walked in the tries from the start of
a request to its end, and written down many at once. The log is the same to the bit.
"""

from dataclasses import dataclass

import numpy as np

from ..decoding.legal_steps import Policy
from ..decoding.results import DRAFT, VERIFY, Forward
from ..decoding.session import Session
from ..policies.about import decides_by_pending
from ..runs.log import RunLedger
from .charges import row_draft_forwards, total_s
from .context_tables import RequestTables
from .contexts import ReplayWorld, TrieTables
from .cost.base import CostModel
from .replay_tables import RecordedWorld, ReplayTables
from .rounds_once import Automaton, Fixed, Lead, TrieWalk

MOST_WAITING = 1 << 13  # operations before they are written down
MOST_PRICED = 1 << 17  # seconds that are kept before they are asked for anew

# kind, level, num_forwards, new_tokens, asked, drafted, judged, accepted, own, emitted, modelled, prefill, refused
_Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
_FIELDS = (
    "kind", "level", "num_forwards", "new_tokens", "asked", "drafted", "judged", "accepted", "own", "emitted",
    "modelled", "prefill", "refused",
)  # fmt: skip


class OpRows:
    """Takes operations in the order in which they run, and tells the ledger of requests, operations and steps.

    Args:
        names: of the members by level.
        num_free: model-free members, which come first.
        decide_s: seconds that a policy is charged for each step.
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


def why_looped(policy: Policy, name: str, *, tables: ReplayTables, world: RecordedWorld, cost: CostModel) -> str:
    """Why a run has to go through the loop, in words; "" if its rounds can be walked."""
    if not decides_by_pending(policy):
        return f"policy {name} does not say that pending tokens alone decide"
    if cost.knows_operations:
        return f"cost {cost.name} knows more of operations than their forwards"
    if any(terms.stop_s for name in tables.pool.names if (terms := cost.draft_terms(name)) is not None):
        return f"cost {cost.name} charges what reads a draft's probabilities"
    if not isinstance(tables, TrieTables) or type(world) is not ReplayWorld:  # one made of it may answer otherwise
        return f"recording {tables.trace.about.name} is not one of contexts"
    if tables.pool.feature_level is not None:
        return f"what {tables.pool.names[tables.pool.feature_level]} drafts depends on what the target has judged"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedRun:
    """What is replayed without a loop, and who is told."""

    policy: Policy  # says `About.by_pending` of itself
    name: str  # of it, for errors
    tables: TrieTables  # the recording
    world: ReplayWorld  # told of requests that begin and end; what it keeps of them is as after a run of the loop
    cost: CostModel  # seconds
    decide_s: float  # seconds that the policy is charged for each step
    ledger: RunLedger  # told what happens

    def automaton(self) -> Automaton:
        """The policy, to be asked."""
        return Automaton(Fixed(self.policy, self.name, self.tables.pool), self.tables.num_free)


class ClosedLoop:
    """Requests one after another, each walked from its start to its end."""

    def __init__(self, run: WalkedRun) -> None:
        self._tables, self._world = run.tables, run.world
        self._automaton = run.automaton()
        self._walk = TrieWalk(self._automaton, run.world)
        self._rows = OpRows(
            cost=run.cost,
            names=run.tables.pool.names,
            num_free=run.tables.num_free,
            decide_s=run.decide_s,
            ledger=run.ledger,
        )

    def run(self, prefill_before: tuple[bool, ...], outputs: dict[str, list[int]] | None) -> bool:
        """Walk all requests of the recording; False if an answer was not recorded to its end: the run is for the loop.

        `prefill_before` is as in `Session`; `outputs` takes the committed tokens of every request by its id, None drops
        them.

        Raises:
            Exception: whatever is wrong with a step or a forward, with no word on whose it was.
        """
        for session in self._world.sessions(prefill_before):
            recorded = self._tables.of(session.request_id)
            self._world.open(session)
            if not self._walk.begin(session, recorded):
                return False
            self._replay(session, recorded)
            self._world.close(session)
            if outputs is not None:
                outputs[session.request_id] = session.emitted
        self._rows.flush()
        return True

    def _replay(self, session: Session, recorded: RequestTables) -> None:
        walk, rows, num_prompt, budget = self._walk, self._rows, session.num_prompt, session.budget
        rows.begin(session.request_id, session.tag, num_prompt)
        position, state = 0, self._automaton.bare
        if session.prefills_first:
            prefill = self._automaton.prefilled
            rows.add([prefill], num_prompt)
            position, state = 1, prefill.after
        while position < walk.length:
            path = walk.round(state, position, budget)
            rows.add(path, num_prompt + position)
            last = path[-1]
            position += last.emitted
            state = last.after
        session.emitted = recorded.trunk_tokens[:position]
