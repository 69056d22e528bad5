"""An imported recording, ready for replay by any number of policies."""

from ..traces.hazard import Hazard
from ..traces.imported.rounds import RoundsRequest, RoundsTrace
from .cost import CostModel
from .recorded_pool import imported_pool
from .request_rounds import RequestRounds
from .rounds_world import RoundsWorld


class RoundsTables:
    """An imported recording; see `recording.Recording`."""

    def __init__(self, trace: RoundsTrace) -> None:
        self.trace = trace
        self.name = trace.meta.name
        self.kind: str = trace.meta.kind
        self.pool = imported_pool(trace)
        self.num_free = len(self.pool.members) - len(trace.meta.drafters) - 1
        self.num_requests = len(trace.requests)
        self._fitted = Hazard(trace)

    def world(self, cost: CostModel, *, seed: int, strict: bool) -> RoundsWorld:
        """A world that replays it."""
        return RoundsWorld(tables=self, cost=cost, hazard=None if strict else self._fitted.reseeded(seed))

    def open(self, request: RoundsRequest) -> RequestRounds:
        """The state of one request's replay."""
        return RequestRounds(request, self.trace.meta)
