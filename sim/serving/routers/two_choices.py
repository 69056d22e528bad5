"""The less loaded of two replicas drawn at random."""

from hashlib import blake2b

from ....traces.workloads.arrival import Arrival
from .load import LoadMeasure
from .router import RouterSetting, Seen


class TwoChoices:
    """The less loaded of two (Mitzenmacher 2001, "The power of two choices in randomized load balancing").

    The two are drawn by seed and request id, so a request meets the same two whatever arrived before it.

    Args:
        setting: what it is built for.
        by: load, see `LeastLoaded`.
        count_sent: see `LeastLoaded`.
    """

    def __init__(self, setting: RouterSetting, *, by: str = "requests", count_sent: bool = True) -> None:
        self._load = LoadMeasure(setting, by, count_sent=count_sent)
        self._num_replicas = setting.num_replicas
        self._seed = setting.seed

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """See `Router`."""
        picked = self._load.least(seen, self._drawn(arrival.request_id))
        self._load.sent(picked, arrival, seen)
        return picked

    def _drawn(self, request_id: str) -> tuple[int, ...]:
        """Two different replicas; the one there is."""
        if self._num_replicas == 1:
            return (0,)
        digest = blake2b(f"{self._seed} {request_id}".encode(), digest_size=16).digest()
        first = int.from_bytes(digest[:8], "big") % self._num_replicas
        second = int.from_bytes(digest[8:], "big") % (self._num_replicas - 1)
        return first, second + (second >= first)
