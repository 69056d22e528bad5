"""The replica that has most of the prompt in its prefix cache."""

from ....arguments import check_within
from ....traces.workloads.arrival import Arrival
from .load import LoadMeasure
from .router import RouterSetting, Seen


class PrefixAffinity:
    """The replica with the longest cached prefix, if it is long enough, else the least loaded one.

    Of replicas with equally long prefixes, the least loaded one. A prefix that many share makes its replica busy:
    nothing here sends requests away from it.

    Args:
        setting: what it is built for.
        least_share: of the prompt that must be cached, in (0, 1].
        by: load, see `LeastLoaded`.
        count_sent: see `LeastLoaded`.
    """

    reads_prefixes = True

    def __init__(
        self, setting: RouterSetting, *, least_share: float = 0.5, by: str = "requests", count_sent: bool = True
    ) -> None:
        check_within("least_share", least_share, "(0, 1]")
        self._least_share = least_share
        self._load = LoadMeasure(setting, by, count_sent=count_sent)
        self._all = range(setting.num_replicas)

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """See `Router`."""
        cached = seen.cached
        most = max(cached.values(), default=0)
        fits = most >= self._least_share * arrival.prompt_tokens
        among = [replica for replica, tokens in cached.items() if tokens == most] if fits else self._all
        picked = self._load.least(seen, among)
        self._load.sent(picked, arrival, seen)
        return picked
