"""A replica that prefills: a request leaves it with its first token, its blocks when they have been sent."""

from ....traces.workloads.arrival import Arrival
from ..engine.replica import Replica
from ..engine.replica_books import Going
from ..engine.replica_spec import ReplicaSpec, ServedFrom
from ..engine.served_session import ServedSession
from .handovers import Handovers


class PrefillReplica(Replica):
    """As `Replica`, whose policy is never asked.

    Args:
        index: among the replicas of the run.
        spec: what it is.
        shared: what it shares with the others.
        handovers: take what it has prefilled.
    """

    def __init__(self, index: int, spec: ReplicaSpec, shared: ServedFrom, handovers: Handovers) -> None:
        super().__init__(index, spec, shared, may_lag=False)
        self._handovers = handovers

    def refuses(self, arrival: Arrival) -> str:
        """Why a request can never run here, or where it would be decoded; "" if it can."""
        return self._memory.refuses(arrival, answer_tokens=1) or self._handovers.refuses(arrival)

    def sent(self, session: ServedSession, at_ps: int) -> None:
        """See `Prefiller`."""
        self._memory.release(session.serial)
        self._books.note_state(at_ps)

    def _commit_step(self, going: Going) -> None:
        super()._commit_step(going)
        for session in going.ending:
            if session.num_answer < session.arrival.output_tokens:
                self._hand_over(session, going.end_ps)

    def _hand_over(self, session: ServedSession, at_ps: int) -> None:
        """It leaves the batch, and its blocks stay."""
        self._loop.withdraw(session)
        self._world.put_back(session)
        self._batch.ended(session)
        session.forget_caches()
        del self._sessions[session.request_id]
        self._handovers.prefilled(self._index, session, at_ps)
