"""What a replica asks for, and how a recording answers it.

Rows are answered one by one, what runs together is charged together. What a recording of contexts has answered before
is read back: asking again would give the same.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

from ...decoding.pool import Pool
from ...decoding.results import Drafted, DraftResults, Judged, VerifyResults
from ...decoding.rules import Exact, Signal
from ...decoding.session import Session
from ...decoding.steps import Draft, Verify
from ..context_tables import ChainDraft
from ..cost.base import CostModel
from ..recorded import RecordedAnswers
from .charges import ServingCharges
from .requests import ServedRequest

Fed: TypeAlias = tuple[int, int] | None  # tokens that rows are fed and hold, in all; None: not known

RanRows: TypeAlias = tuple[Sequence[Any], int, int, int]  # `Ran`, or its fields


class Ran(NamedTuple):
    """What came of an operation."""

    rows: Sequence[Any]  # `Drafted` or `Judged`, of each request
    num_forwards: int  # of the member
    new_tokens: int  # fed in these, over all rows
    duration_ps: int  # of all of it

    @classmethod
    def of(cls, results: DraftResults | VerifyResults, duration_ps: int) -> Self:
        """What a world of `decoding` says, and how long it took."""
        num_forwards = new_tokens = 0
        for _, new, repeats, _ in results.forwards:
            num_forwards += repeats if new else 0
            new_tokens += repeats * new
        return cls(results.rows, num_forwards, new_tokens, duration_ps)


class EngineWorld(Protocol):
    """What carries out the operations of one replica: of each request its `step`, from where it stands.

    No row fails or is deferred: the replica counts blocks itself. What only reads, `chunks` and `catch_up`, is fed
    `ServedRequest.chunk` tokens after those that the member's cache holds, and is told of nothing afterwards.
    """

    def open(self, session: Session) -> None:
        """See `decoding.world.World`."""
        ...

    def close(self, session: Session) -> None:
        """See `decoding.world.World`."""
        ...

    def signal(self, session: Session, index: int) -> Signal:
        """See `decoding.world.World`."""
        ...

    def put_back(self, session: Session) -> None:
        """The request left the batch, its caches are empty; it may come back, and is not opened again then."""
        ...

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> RanRows:
        """Let the member at `level` draft."""
        ...

    def verify(
        self, level: int, rows: Sequence[ServedRequest], chunks: Sequence[ServedRequest] = (), fed: Fed = None
    ) -> RanRows:
        """Let the member at `level` judge; `chunks` are fed in the same forward and judged by nobody."""
        ...

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        """Let the member at `level` read a chunk of each text; returns how long it takes, picoseconds."""
        ...


class ServedWorld:
    """Answers the operations of one replica from a recording, and charges them; see `EngineWorld`.

    Args:
        answers: of the recording.
        pool: its members in level order.
        cost: seconds.
        target_cost: of forwards of the target; None: those of `cost`.
        now_s: reads the replica's clock.
        rows: takes the requests of each verification before it is charged, by serial; None: nobody looks.

    Attributes:
        answers: see above.
        charges: seconds of operations.
    """

    def __init__(
        self,
        *,
        answers: RecordedAnswers,
        pool: Pool,
        cost: CostModel,
        now_s: Callable[[], float],
        target_cost: CostModel | None = None,
        rows: list[int] | None = None,
    ) -> None:
        self.answers = answers
        self._num_free, self._target = answers.num_free, pool.target_level
        self._drafted, self._judged = answers.drafted, answers.judged
        self._rows = rows
        self.charges = ServingCharges(cost, pool, now_s, target_cost)

    @property
    def is_plain(self) -> bool:
        """Whether an operation costs its forwards and nothing else, whoever takes part."""
        return self._rows is None and self.charges.are_forwards

    def open(self, session: Session) -> None:
        """Nothing: a served session replays its request from when it is made."""

    def close(self, session: Session) -> None:
        """Forget the request."""
        self.answers.release(session.request_id)
        self.charges.close(session.request_id)

    def put_back(self, session: Session) -> None:
        """See `EngineWorld`; what it replays stays."""
        self.charges.close(session.request_id)

    def signal(self, session: Session, index: int) -> Signal:
        """What the drafter said of the pending token at `index`."""
        return self.answers.signal(session, index)

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> RanRows:
        """See `EngineWorld`."""
        if level < self._num_free:
            looked_up = [self.answers.looked_up(row, cast(Draft, row.step)) for row in rows]
            return looked_up, 0, 0, self.charges.looked_up(len(rows))
        drafted: list[Drafted] = []
        for row in rows:
            step: Any = row.step
            tables, places, found = row.tables, row.places, None
            if tables is not None and step.stop is None:
                chain = tables.chains[level].get(places[-1] if places else row.place)
                if chain is not None:
                    found = chain.drafts.get(row.asked)
            drafted.append(found or self._drafted(row, step, level))
        return drafted, *self.charges.drafted(level, rows, drafted, fed)

    def verify(
        self, level: int, rows: Sequence[ServedRequest], chunks: Sequence[ServedRequest] = (), fed: Fed = None
    ) -> RanRows:
        """See `EngineWorld`."""
        judged: list[Judged] = []
        commits = level == self._target
        for row in rows:
            step: Any = row.step
            draft: Any = row.draft
            found: Judged | None = None
            if not row.tokens:
                if commits and row.tables is not None:
                    found = row.tables.alone.get(row.place)
            elif step.rule.__class__ is Exact:
                if draft is None and not commits and row.latest_at == row.first:
                    draft = row.latest
                elif row.first and not commits:
                    draft = None
                if draft.__class__ is ChainDraft:
                    found = draft.verdicts.get(level) or self._said(row, draft, level)
            judged.append(found or self._judged(row, step, level))
        everyone = (*rows, *chunks) if chunks else rows
        if self._rows is not None:
            self._rows[:] = [row.serial for row in everyone]
        return judged, 1, *self.charges.verified(level, everyone, fed)

    def _said(self, row: ServedRequest, draft: ChainDraft, level: int) -> Judged:
        """What a member says of a draft, kept for the next who asks unless it depends on the request."""
        found = self._judged(row, cast(Verify, row.step), level)
        if found.own_token >= 0 and not found.num_modelled:
            draft.verdicts[level] = found
        return found

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        """See `EngineWorld`."""
        return self.charges.verified(level, rows)[1]
