"""Signals of replicas as they are now, each asked for when it is looked at: mostly a router looks at few."""

from collections.abc import Sequence
from typing import Protocol, overload

from .router import ReplicaSignals


class Telling(Protocol):
    """A replica that tells its signals."""

    def signals(self) -> ReplicaSignals:
        """As it is now."""
        ...


class LazySignals(Sequence[ReplicaSignals]):
    """`[R]`, valid as long as nothing happens to the replicas.

    Args:
        replicas: `[R]`, in order.
    """

    __slots__ = ("_known", "_replicas")

    def __init__(self, replicas: Sequence[Telling]) -> None:
        self._replicas = replicas
        self._known: dict[int, ReplicaSignals] = {}

    def __len__(self) -> int:
        """R."""
        return len(self._replicas)

    @overload
    def __getitem__(self, replica: int, /) -> ReplicaSignals: ...
    @overload
    def __getitem__(self, replica: slice, /) -> Sequence[ReplicaSignals]: ...
    def __getitem__(self, replica: int | slice, /) -> ReplicaSignals | Sequence[ReplicaSignals]:
        """Of one replica, or of several; raises IndexError for one that is not there."""
        if isinstance(replica, slice):
            return tuple(self[number] for number in range(*replica.indices(len(self))))
        known = self._known.get(replica)
        if known is None:
            known = self._known[replica] = self._replicas[replica].signals()
        return known
