"""The world of a served batch whose operations real models carry out, and which takes as long as they do."""

from collections.abc import Mapping, Sequence
from typing import cast

from ....decoding.results import Deferred, DraftResults, Failed, Judged, VerifyResults
from ....decoding.rules.signal import Signal
from ....decoding.session import Session
from ....decoding.world import DraftItem, VerifyItem
from ....runtime.timing.clock import Clock
from ....runtime.world import TorchWorld
from ....sim.recorded_answers import RecordedAnswers
from ....sim.serving.clock import to_ps, to_s
from ....sim.serving.engine.served_session import ServedSession


class Stopwatch:
    """Seconds of work, one operation after another, whichever replica's.

    An operation takes what passed since the end of the one before: choosing steps, forming batches and keeping books
    are work of an engine, too. Where the clock of the run skips idle time, next to nothing passes here.

    Args:
        clock: waits for all devices that the models are on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended_s: float | None = None

    def start(self) -> None:
        """An operation begins; counts if it is the first."""
        if self._ended_s is None:
            self._ended_s = self._clock.now_s()

    def lap_s(self) -> float:
        """Seconds of the operation that ends now."""
        assert self._ended_s is not None
        before_s, self._ended_s = self._ended_s, self._clock.now_s()
        return self._ended_s - before_s


class ModelsWorld:
    """Carries out the operations of one replica; implements `sim.serving.engine.served_world.EngineWorld`.

    A request whose models write another token than the target did when it was recorded has **left** its record: by a
    near tie, since shapes of batches turn roundings. From there on end-of-sequence tokens do not end it, so that it has
    as many tokens as the workload says.

    Args:
        models: the real world; of one replica alone.
        answers: released when requests end; sessions were made from it.
        trunks: by recorded request, what the target wrote.
        left: takes the ids of requests that leave their records.
        stopwatch: that all replicas share.

    Attributes:
        duration_ps: of the latest operation.
    """

    def __init__(
        self,
        models: TorchWorld,
        answers: RecordedAnswers,
        trunks: Mapping[str, Sequence[int]],
        left: set[str],
        stopwatch: Stopwatch,
    ) -> None:
        self._models = models
        self._answers = answers
        self._trunks = trunks
        self._left = left
        self._stopwatch = stopwatch
        self._target = len(models.pool.members) - 1
        self.duration_ps = 0

    def open(self, session: Session) -> None:
        """See `World`."""
        self._models.open(session)

    def close(self, session: Session) -> None:
        """See `World`."""
        self._models.close(session)
        self._answers.release(session.request_id)

    def put_back(self, session: Session) -> None:
        """See `EngineWorld`."""
        self._models.put_back(session)

    def signal(self, session: Session, index: int) -> Signal:
        """See `World`."""
        return self._models.signal(session, index)

    def draft(self, level: int, items: Sequence[DraftItem]) -> DraftResults:
        """See `World`; raises as `verify`."""
        self._stopwatch.start()
        results = self._models.draft(level, items)
        _check_ran(items, results.rows)
        return results._replace(duration_s=self._took_s())

    def verify(self, level: int, items: Sequence[VerifyItem], chunks: Sequence[VerifyItem] = ()) -> VerifyResults:
        """See `EngineWorld`.

        Raises:
            ValueError: a request failed in the models.
            MemoryError: a device has no room for what the blocks of the cluster hold.
        """
        self._stopwatch.start()
        results = self._models.verify(level, items, [_chunk(session) for session, _ in chunks])
        _check_ran(items, results.rows)
        if level == self._target:
            for (session, _), row in zip(items, results.rows, strict=True):
                self._compare(cast(ServedSession, session), cast(Judged, row))
        return results._replace(duration_s=self._took_s())

    def catch_up(self, level: int, sessions: Sequence[Session]) -> None:
        """See `EngineWorld`; raises as `verify`."""
        self._stopwatch.start()
        self._models.verify(level, [], [_chunk(session) for session in sessions])
        self._took_s()

    def _took_s(self) -> float:
        if self._models.manager.evicted:
            raise _no_room(self._models.manager.evicted[0])
        self.duration_ps = to_ps(self._stopwatch.lap_s())
        return to_s(self.duration_ps)

    def _compare(self, session: ServedSession, judged: Judged) -> None:
        """Note a request whose committed tokens are about to be others than those recorded."""
        start = len(session.emitted)
        written = [*session.tokens[: judged.num_accepted], judged.own_token]
        recorded = self._trunks[session.recorded_id][start : start + len(written)]
        if session.request_id not in self._left and any(map(_differ, written, recorded)):
            self._left.add(session.request_id)
            session.eos = frozenset()


def _differ(written: int, recorded: int) -> bool:
    return written != recorded


def _chunk(session: Session) -> tuple[Session, int]:
    return session, cast(ServedSession, session).chunk


def _check_ran(items: Sequence[DraftItem] | Sequence[VerifyItem], rows: Sequence[object]) -> None:
    for (session, _), row in zip(items, rows, strict=True):
        if isinstance(row, Failed):
            raise ValueError(f"request {session.request_id} failed: {row.error}") from row.error
        if isinstance(row, Deferred):
            raise _no_room(session.request_id)


def _no_room(request_id: str) -> MemoryError:
    return MemoryError(
        f"request {request_id}: the models' device has no room for its keys and values; give the cluster fewer "
        "kv_blocks"
    )
