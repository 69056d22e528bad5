"""Which operation runs next: as `decoding.loop` groups steps, for requests whose rounds are known."""

from typing import NamedTuple

from ...fixed.rounds import FixedRounds
from .tabled_request import TabledRequest


class RequestsOp(NamedTuple):
    """An operation of several requests; each has it as its next one.

    Attributes:
        level: of the member that runs.
        drafts: whether it drafts; else it judges.
        requests: in their order.
    """

    level: int
    drafts: bool
    requests: list[TabledRequest]


class RequestQueue:
    """Requests between two operations, and operations that others may still join.

    Args:
        rounds: of the policy.
    """

    def __init__(self, rounds: FixedRounds) -> None:
        self._rounds = rounds
        self._ready: list[TabledRequest] = []
        self._waiting: dict[tuple[int, bool], list[TabledRequest]] = {}

    @property
    def is_between_rounds(self) -> bool:
        """Whether everybody is about to begin a round."""
        return not self._waiting and all(request.round is None for request in self._ready)

    def take_all(self) -> list[TabledRequest]:
        """Those that are ready, in their order; they are with whoever asks from now on."""
        ready, self._ready = self._ready, []
        return ready

    def waits(self, request: TabledRequest) -> None:
        """A request has run all but the last operation of its round, after others that have."""
        op = request.op
        self._waiting.setdefault((op.level, not op.drafts), []).append(request)

    def goes_on(self, request: TabledRequest) -> None:
        """A request is ready for its next operation, after all that are."""
        self._ready.append(request)

    def withdraw(self, request: TabledRequest) -> None:
        """A request is put back; its round is dropped."""
        self._ready = [other for other in self._ready if other is not request]
        for kind, requests in list(self._waiting.items()):
            left = [other for other in requests if other is not request]
            if left:
                self._waiting[kind] = left
            else:
                del self._waiting[kind]

    def next_op(self) -> RequestsOp | None:
        """The smallest member first, and drafts before it judges; None if nobody is there."""
        waiting = self._waiting
        for request in self._ready:
            found = request.round
            if found is None:
                request.round = found = self._rounds.round(
                    request.arrival.request_id,
                    request.recorded_id,
                    request.position,
                    request.budget - request.position,
                )
                request.step = 0
            op = found.ops[request.step]
            kind = op.level, not op.drafts
            if kind in waiting:
                waiting[kind].append(request)
            else:
                waiting[kind] = [request]
        self._ready.clear()
        if not waiting:
            return None
        level, judges = kind = min(waiting)
        return RequestsOp(level, not judges, waiting.pop(kind))
