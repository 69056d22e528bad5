"""Each replica in turn, whatever its load."""

from ....traces.workloads.arrival import Arrival
from .router import RouterSetting, Seen


class RoundRobin:
    """The replica after the one that was picked last, from number 0 on."""

    reads_signals = False

    def __init__(self, setting: RouterSetting) -> None:
        self._num_replicas = setting.num_replicas
        self._next = 0

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """See `Router`."""
        picked = self._next
        self._next = (picked + 1) % self._num_replicas
        return picked
