"""The replica with the least load."""

from ....traces.workloads.arrival import Arrival
from .load import LoadMeasure
from .router import RouterSetting, Seen


class LeastLoaded:
    """The least loaded replica; of equal ones the next in turn.

    Args:
        setting: what it is built for.
        by: "requests" (4 x waiting + running), "tokens" (queued) or "kv" (share of blocks in use).
        count_sent: whether what it sent since the snapshot counts, as vLLM's data-parallel client does; without that,
            all requests between two snapshots go the same way.
    """

    def __init__(self, setting: RouterSetting, *, by: str = "requests", count_sent: bool = True) -> None:
        self._load = LoadMeasure(setting, by, count_sent=count_sent)
        self._all = range(setting.num_replicas)

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """See `Router`."""
        picked = self._load.least(seen, self._all)
        self._load.sent(picked, arrival, seen)
        return picked
