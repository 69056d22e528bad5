"""The contract of a router: which replica serves a request that has just arrived.

Letters: R replicas, numbered from 0 in the order of the cluster file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ....traces.workloads.arrival import Arrival


class ReplicaSignals(NamedTuple):
    """What a replica tells of its load.

    Attributes:
        running: requests in its batch, >= 0.
        waiting: requests that are not in it yet, or were put back, >= 0.
        queued_tokens: of texts that it has still to prefill, those of running requests included, >= 0.
        free_kv_share: of the blocks of the member with the least, that are free or can be taken, 0 to 1.
    """

    running: int
    waiting: int
    queued_tokens: int
    free_kv_share: float


class Seen(Protocol):
    """What a router sees, valid during `pick` only."""

    @property
    def signals(self) -> Sequence[ReplicaSignals]:
        """`[R]`, as old as the newest snapshot.

        Raises:
            RouterError: the router says that it does not read them.
        """
        ...

    @property
    def snapshot(self) -> int:
        """Number of the snapshot: another one whenever signals were taken anew."""
        ...

    @property
    def cached(self) -> Mapping[int, int]:
        """By number of the replica, `cached_tokens` of those that have any, in order: quicker than to ask for each.

        Raises:
            RouterError: as `cached_tokens`.
        """
        ...

    def cached_tokens(self, replica: int) -> int:
        """Tokens at the start of the prompt that the replica's target has in its prefix cache, as old as the signals.

        Raises:
            RouterError: signals are snapshots, and the router does not say `reads_prefixes`.
        """
        ...


class Router(Protocol):
    """Picks a replica for each request, once.

    A class's constructor takes a `RouterSetting` first, then options. One object serves a whole run. The same setting
    and the same calls give the same picks, so chance comes from the seed.

    A router that asks for cached prefixes says so by a class attribute `reads_prefixes = True`: only then are they kept
    with snapshots. One that looks at no signals may say `reads_signals = False`: then replicas need not be as they are
    at each arrival, which saves time.
    """

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """The number of the replica that serves the request, 0 to R - 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSetting:
    """What a router is built for.

    Attributes:
        num_replicas: R, >= 1.
        seed: of its chance, >= 0.
    """

    num_replicas: int
    seed: int = 0


class RouterError(ValueError):
    """A router broke its contract; one line with its name, the request and what it did."""
