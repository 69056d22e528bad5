"""What stands between arrivals and replicas: signals, stale or not, and the router that reads them.

With `stale_ps` at 0 a router sees replicas as they are when a request arrives. Else it sees the newest snapshot: they
are taken at 0, `stale_ps`, 2 x `stale_ps` ..., each before any request of that instant is routed. Whoever drives the
run asks for the instant of the next one, and takes it. Letters: R replicas.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import index
from typing import Protocol, SupportsIndex

from ....arguments import check_least
from ....foreign_code import pass_interrupt, said, told
from ....traces.workloads.arrival import Arrival
from ..kv.first_blocks import FirstBlocks, first_key
from .lazy_signals import LazySignals
from .router import ReplicaSignals, Router, RouterError

CachedTokens = Callable[[Arrival], int]


class WatchedReplica(Protocol):
    """A replica as routers need it; asking changes nothing."""

    def signals(self) -> ReplicaSignals:
        """As it is now."""
        ...

    def cached_tokens(self, arrival: Arrival) -> int:
        """Tokens at the start of the prompt that the target's prefix cache holds now."""
        ...

    def first_blocks(self) -> FirstBlocks:
        """Of cached texts, as they are whenever one looks: a prompt that begins with none has nothing cached."""
        ...

    def frozen_prefixes(self) -> CachedTokens:
        """`cached_tokens` of the prefix cache as it is now, whatever becomes of it until this is called again."""
        ...


class Dispatcher:
    """Routes requests, and holds the router to its contract.

    Args:
        router: that picks.
        label: of the router, for messages.
        replicas: `[R]`, in order.
        stale_ps: between two snapshots, >= 0; 0: signals are never stale.

    Attributes:
        looks: whether the router may look at replicas when a request arrives, so that they have to be as they are then.
    """

    def __init__(self, router: Router, label: str, replicas: Sequence[WatchedReplica], stale_ps: int = 0) -> None:
        check_least("`stale_ps`", stale_ps, 0)
        self._router = router
        self._label = label
        self._replicas = tuple(replicas)
        self._stale_ps = stale_ps
        self._reads_prefixes = bool(getattr(router, "reads_prefixes", False))
        self._reads_signals = bool(getattr(router, "reads_signals", True))
        self.looks = stale_ps == 0 and (self._reads_signals or self._reads_prefixes)
        self._taken = 0
        self._signals: Sequence[ReplicaSignals] | None = None
        self._first_blocks: dict[tuple[int, int], list[tuple[int, Container[int]]]] = {}  # by sizes
        self._cached_tokens_of: tuple[CachedTokens, ...] = tuple(replica.cached_tokens for replica in self._replicas)
        self.take_snapshot()

    def next_snapshot_ps(self, now_ps: int) -> int | None:
        """When the first snapshot after now is due; None where signals are never stale."""
        return None if self._stale_ps == 0 else (now_ps // self._stale_ps + 1) * self._stale_ps

    def take_snapshot(self) -> None:
        """Take the signals of all replicas as they are now; those that are never stale are asked for when looked at."""
        self._taken += 1
        if not self._stale_ps:
            self._signals = None
            return
        self._signals = tuple(replica.signals() for replica in self._replicas)
        if self._reads_prefixes:
            self._cached_tokens_of = tuple(replica.frozen_prefixes() for replica in self._replicas)

    def pick(self, arrival: Arrival) -> int:
        """The number of the replica for a request, which has to be handed to it before the next one is routed.

        Raises:
            RouterError: the router raised, or picked what is no replica.
        """
        if self.looks:
            self.take_snapshot()
        try:
            picked = self._router.pick(arrival, _Seen(self, arrival))
        except RouterError:
            raise
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise RouterError(f"{self._named(arrival)}: pick raised {told(error)}") from error
        return self._checked(picked, arrival)

    def _checked(self, picked: object, arrival: Arrival) -> int:
        if type(picked) is int and 0 <= picked < len(self._replicas):
            return picked
        number = -1
        if isinstance(picked, SupportsIndex) and not isinstance(picked, bool):
            number = index(picked)
        if not 0 <= number < len(self._replicas):
            raise RouterError(
                f"{self._named(arrival)}: must pick a replica in [0, {len(self._replicas) - 1}], "
                f"got {said(picked, repr)}"
            )
        return number

    def _named(self, arrival: Arrival) -> str:
        return f"router {self._label!r}, request {arrival.request_id}"

    def _seen_signals(self, arrival: Arrival) -> Sequence[ReplicaSignals]:
        if not self._reads_signals:
            raise RouterError(f"{self._named(arrival)}: asks for signals, and says reads_signals = False")
        if self._signals is None:
            self._signals = LazySignals(self._replicas)
        return self._signals

    def _cached(self, arrival: Arrival) -> Mapping[int, int]:
        self._check_reads_prefixes(arrival)
        if self._stale_ps:
            asked: Iterable[int] = range(len(self._replicas))
        else:
            asked = self._may_have(arrival)
        found = {replica: self._cached_tokens_of[replica](arrival) for replica in asked}
        return {replica: tokens for replica, tokens in found.items() if tokens}

    def _may_have(self, arrival: Arrival) -> list[int]:
        """Replicas whose caches hold the first block of a prompt."""
        if not self._first_blocks:
            for replica, watched in enumerate(self._replicas):
                unit_tokens, block_tokens, keys = watched.first_blocks()
                self._first_blocks.setdefault((unit_tokens, block_tokens), []).append((replica, keys))
        found: list[int] = []
        for (unit_tokens, block_tokens), held in self._first_blocks.items():
            first = first_key(arrival, unit_tokens, block_tokens)
            if first is not None:
                found += [replica for replica, keys in held if first in keys]
        return sorted(found)

    def _cached_tokens(self, replica: int, arrival: Arrival) -> int:
        self._check_reads_prefixes(arrival)
        return self._cached_tokens_of[replica](arrival)

    def _check_reads_prefixes(self, arrival: Arrival) -> None:
        if not self._reads_prefixes and (self._stale_ps or not self._reads_signals):
            of = " of stale signals," if self._stale_ps else ","
            rule = f"asks for cached prefixes{of} and does not say reads_prefixes = True"
            raise RouterError(f"{self._named(arrival)}: {rule}")


class _Seen:
    """See `Seen`."""

    __slots__ = ("_arrival", "_dispatcher")

    def __init__(self, dispatcher: Dispatcher, arrival: Arrival) -> None:
        self._dispatcher = dispatcher
        self._arrival = arrival

    @property
    def signals(self) -> Sequence[ReplicaSignals]:
        """See `Seen`."""
        return self._dispatcher._seen_signals(self._arrival)

    @property
    def snapshot(self) -> int:
        """See `Seen`."""
        return self._dispatcher._taken

    @property
    def cached(self) -> Mapping[int, int]:
        """See `Seen`."""
        return self._dispatcher._cached(self._arrival)

    def cached_tokens(self, replica: int) -> int:
        """See `Seen`."""
        return self._dispatcher._cached_tokens(replica, self._arrival)
