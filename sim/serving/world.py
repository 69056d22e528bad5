"""The world of a replica, and how a recording answers it.

Rows are answered one by one, and charged together. Answers of a recording of contexts are cached, as they never change.
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

Fed: TypeAlias = tuple[int, int] | None  # total tokens fed to rows and held; None: unknown

RanRows: TypeAlias = tuple[Sequence[Any], int, int, int]  # `Ran`, or its fields


class Ran(NamedTuple):
    """Results of an operation."""

    rows: Sequence[Any]  # `Drafted` or `Judged`, of each request
    num_forwards: int  # of the member
    new_tokens: int  # fed in these, over all rows
    duration_ps: int  # of all of it

    @classmethod
    def of(cls, results: DraftResults | VerifyResults, duration_ps: int) -> Self:
        """From results of a world of `decoding`, and their duration."""
        num_forwards = new_tokens = 0
        for _, new, repeats, _ in results.forwards:
            num_forwards += repeats if new else 0
            new_tokens += repeats * new
        return cls(results.rows, num_forwards, new_tokens, duration_ps)


class EngineWorld(Protocol):
    """Carries out the operations of one replica: of each request its `step`, from its present state.

    No row fails or is deferred: the replica counts blocks itself. Rows that only read, `chunks` and `catch_up`, are fed
    `ServedRequest.chunk` tokens after those in the member's cache, and have no results.
    """

    def open(self, session: Session) -> None: ...

    def close(self, session: Session) -> None: ...

    def signal(self, session: Session, index: int) -> Signal: ...

    def preempt(self, session: Session) -> None:
        """The request left the batch, preempted or handed over; it may come back, and is not opened again then."""

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> RanRows:
        """Let the member at `level` draft."""

    def verify(
        self, level: int, rows: Sequence[ServedRequest], chunks: Sequence[ServedRequest] = (), fed: Fed = None
    ) -> RanRows:
        """Let the member at `level` judge; `chunks` are fed in the same forward and not judged."""

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        """Let the member at `level` read a chunk of each text; returns picoseconds."""


class ServedWorld:
    """Answers the operations of one replica from a recording, and charges them; see `EngineWorld`.

    Args:
        answers: of the recording.
        pool: its members in level order.
        cost: seconds.
        target_cost: of forwards of the target; None: those of `cost`.
        now_s: reads the replica's clock.
        rows: set to the serials of each verification's requests before it is charged; None: not needed.

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
        """Whether any operation takes only its forwards."""
        return self._rows is None and self.charges.are_forwards

    def open(self, session: Session) -> None:
        """Nothing: a served session replays its request from when it is made."""

    def close(self, session: Session) -> None:
        self.answers.release(session.request_id)
        self.charges.close(session.request_id)

    def preempt(self, session: Session) -> None:
        """See `EngineWorld`; the replayed request is kept."""
        self.charges.close(session.request_id)

    def signal(self, session: Session, index: int) -> Signal:
        return self.answers.signal(session, index)

    def draft(self, level: int, rows: Sequence[ServedRequest], fed: Fed = None) -> RanRows:
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
        """A member's verdict on a draft, cached unless it depends on the request."""
        found = self._judged(row, cast(Verify, row.step), level)
        if found.own_token >= 0 and not found.num_modelled:
            draft.verdicts[level] = found
        return found

    def catch_up(self, level: int, rows: Sequence[ServedRequest]) -> int:
        return self.charges.verified(level, rows)[1]
