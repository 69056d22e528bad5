"""How loaded replicas are, and the least loaded of some: what several routers share.

Letters: R replicas.
"""

from collections.abc import Iterable

from ....arguments import ArgumentError
from ....traces.workloads.arrival import Arrival
from .router import ReplicaSignals, RouterSetting, Seen

# vLLM's data-parallel client weighs waiting requests so (vllm/v1/engine/core_client.py: `waiting * 4 + running`).
WAITING_WEIGHT = 4
MEASURES = ("requests", "tokens", "kv")
Load = tuple[float, int]


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
        self._sent_to: set[int] = set()
        self._first = 0  # of equally loaded ones: the one after the newest pick

    def least(self, seen: Seen, among: Iterable[int]) -> int:
        """The least loaded of some replicas; of equal ones the first after the newest that was sent to."""
        self._forget_before(seen.snapshot)
        first, count, signals = self._first, self._num_replicas, seen.signals
        return min((self._load(signals[replica], replica), (replica - first) % count, replica) for replica in among)[2]

    def sent(self, replica: int, arrival: Arrival, seen: Seen) -> None:
        """Note a pick."""
        self._forget_before(seen.snapshot)
        if self._count_sent:
            self._sent_to.add(replica)
            self._sent[replica] += 1
            self._sent_tokens[replica] += arrival.prompt_tokens
        self._first = (replica + 1) % self._num_replicas

    def _load(self, told: ReplicaSignals, replica: int) -> Load:
        if self._by == "tokens":
            return told.queued_tokens + self._sent_tokens[replica], 0
        requests = WAITING_WEIGHT * (told.waiting + self._sent[replica]) + told.running
        return (requests, 0) if self._by == "requests" else (1.0 - told.free_kv_share, requests)

    def _forget_before(self, snapshot: int) -> None:
        """What was sent before a snapshot is in its signals."""
        if snapshot != self._snapshot:
            self._snapshot = snapshot
            for replica in self._sent_to:
                self._sent[replica] = self._sent_tokens[replica] = 0
            self._sent_to.clear()
