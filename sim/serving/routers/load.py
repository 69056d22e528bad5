"""How loaded replicas are, and the least loaded of some: what several routers share.

Letters: R replicas.
"""

from collections.abc import Iterable

from ....arguments import ArgumentError
from ....traces.workloads.arrival import Arrival
from .router import RouterSetting, Seen

# vLLM's data-parallel client weighs waiting requests so (vllm/v1/engine/core_client.py: `waiting * 4 + running`).
WAITING_WEIGHT = 4
MEASURES = ("requests", "tokens", "kv")
Load = tuple[float, ...]


class LoadMeasure:
    """The load of replicas, with what a router has sent since the signals were taken.

    Args:
        setting: of the router.
        by: "requests": 4 x waiting + running; "tokens": queued tokens; "kv": share of blocks in use, then as requests.
        count_sent: whether requests that were sent since the snapshot count as waiting, and their prompts as queued.

    Raises:
        ArgumentError: a measure that is none of these.
    """

    def __init__(self, setting: RouterSetting, by: str, *, count_sent: bool) -> None:
        if by not in MEASURES:
            raise ArgumentError(f"by must be {', '.join(MEASURES[:-1])} or {MEASURES[-1]}, got {by!r}")
        self._by = by
        self._count_sent = count_sent
        self._num_replicas = setting.num_replicas
        self._snapshot = -1
        self._sent = [0] * self._num_replicas
        self._sent_tokens = [0] * self._num_replicas
        self._first = 0  # of equally loaded ones: the one after the newest pick

    def least(self, seen: Seen, among: Iterable[int]) -> int:
        """The least loaded of some replicas; of equal ones the first after the newest that was sent to."""
        count = self._num_replicas
        return min(among, key=lambda replica: (self._load(seen, replica), (replica - self._first) % count))

    def sent(self, replica: int, arrival: Arrival, seen: Seen) -> None:
        """Note a pick."""
        self._forget_before(seen.snapshot)
        self._sent[replica] += 1
        self._sent_tokens[replica] += arrival.prompt_tokens
        self._first = (replica + 1) % self._num_replicas

    def _load(self, seen: Seen, replica: int) -> Load:
        self._forget_before(seen.snapshot)
        told = seen.signals[replica]
        sent, sent_tokens = (self._sent[replica], self._sent_tokens[replica]) if self._count_sent else (0, 0)
        if self._by == "tokens":
            return (told.queued_tokens + sent_tokens,)
        requests = WAITING_WEIGHT * (told.waiting + sent) + told.running
        return (requests,) if self._by == "requests" else (1.0 - told.free_kv_share, requests)

    def _forget_before(self, snapshot: int) -> None:
        """What was sent before a snapshot is in its signals."""
        if snapshot != self._snapshot:
            self._snapshot = snapshot
            self._sent = [0] * self._num_replicas
            self._sent_tokens = [0] * self._num_replicas
