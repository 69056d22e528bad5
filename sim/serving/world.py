"""What a replica asks for, and how a recording answers it.

Rows are answered one by one, what runs together is charged together.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ...decoding.pool import Pool
from ...decoding.prefix_cache import NO_COUNTS
from ...decoding.results import DraftResults, Forward, VerifyResults, made
from ...decoding.rules import Signal
from ...decoding.session import Session
from ...decoding.steps import Verify
from ...decoding.world import DraftItem, VerifyItem, World
from ...traces.workloads.arrival import PS_PER_S
from ..cost.base import CostModel
from ..recorded import RecordedAnswers
from .charges import ServingCharges
from .requests import ServedRequest


class EngineWorld(World, Protocol):
    """What carries out the operations of one replica, of sessions that are `ServedRequest`s.

    No row fails or is deferred: the replica counts blocks itself. What only reads, `chunks` and `catch_up`, feeds each
    session `ServedRequest.chunk` tokens after those that the member's cache holds, and is told of nothing afterwards.

    Attributes:
        duration_ps: of the latest operation.
    """

    duration_ps: int

    def put_back(self, session: Session) -> None:
        """The request left the batch, its caches are empty; it may come back, and is not opened again then."""
        ...

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[VerifyItem] = ()) -> VerifyResults:
        """Let the member at `level` judge; `chunks` are fed in the same forward and judged by nobody."""
        ...

    def catch_up(self, level: int, sessions: Sequence[Session]) -> None:
        """Let the member at `level` read a chunk of each text; nothing is drafted or judged."""
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
        duration_ps: of the latest operation.
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
        self._rows = rows
        self.charges = ServingCharges(cost, pool, now_s, target_cost)
        self._reads = Verify(pool.target)
        self.duration_ps = 0

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

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """Let the member at `level` draft."""
        answers = self.answers
        forwards: list[Forward] = []
        if level < answers.num_free:
            drafted = [answers.looked_up(session, step) for session, step in items]
            self.duration_ps = self.charges.looked_up(len(items))
        else:
            drafted = [answers.drafted(session, step, level) for session, step in items]
            forwards, self.duration_ps = self.charges.drafted(level, items, drafted)
        return made(DraftResults, (drafted, forwards, self.duration_ps / PS_PER_S, 1.0, NO_COUNTS))

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[VerifyItem] = ()) -> VerifyResults:
        """See `EngineWorld`."""
        judged = [self.answers.judged(session, step, level) for session, step in items]
        if self._rows is not None:
            self._rows[:] = [cast(ServedRequest, session).serial for session, _ in (*items, *chunks)]
        forward, self.duration_ps = self.charges.verified(level, [*items, *chunks] if chunks else items)
        return made(VerifyResults, (judged, [forward], self.duration_ps / PS_PER_S, 1.0, NO_COUNTS))

    def catch_up(self, level: int, sessions: Sequence[Session]) -> None:
        """See `EngineWorld`."""
        _, self.duration_ps = self.charges.verified(level, [(session, self._reads) for session in sessions])
