"""Which replica serves a request that has just arrived: routers, their contract, and the signals that they see.

With `stale_ps` at 0 a router sees replicas as they are when a request arrives. Else it sees the newest snapshot: they
are taken at 0, `stale_ps`, 2 x `stale_ps` ..., each before any request of that instant is routed. The code that runs
the events asks for the instant of the next one, and takes it.

`ROUTERS.parse(text)`, then `build(setting)` for every run, makes a router from its text:

    NAME | NAME,key=value,... | NAME(key=value,...) | path/to/file.py:Class,... | package.module:Class,...

Other packages register theirs in the entry-point group `paceline.routers`. Letters: R replicas, numbered from 0 in the
order of the cluster file.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from operator import index
from typing import NamedTuple, Protocol, SupportsIndex

from ...base.by_name import NamedKind
from ...base.errors import ArgumentError, check_least, check_within, pass_interrupt, said, told
from ...traces.workloads.arrival import Arrival
from .memory import FirstBlocks, first_key


class ReplicaSignals(NamedTuple):
    """The load of a replica."""

    running: int  # requests in its batch, >= 0
    waiting: int  # requests not in it, preempted ones included, >= 0
    queued_tokens: int  # of texts yet to prefill, those of running requests included, >= 0
    free_kv_share: float  # of the member with the least, share of blocks that are free or evictable, 0 to 1


class Seen(Protocol):
    """A router's view, valid during `pick` only."""

    @property
    def signals(self) -> Sequence[ReplicaSignals]:
        """`[R]`, as old as the newest snapshot.

        Raises:
            RouterError: the router has `reads_signals = False`.
        """

    @property
    def snapshot(self) -> int:
        """Number of the snapshot: another one whenever signals were taken again."""

    @property
    def cached(self) -> Mapping[int, int]:
        """By number of the replica, `cached_tokens` of those that have any, in order: faster than one by one.

        Raises:
            RouterError: as `cached_tokens`.
        """

    def cached_tokens(self, replica: int) -> int:
        """Tokens at the start of the prompt that the replica's target has in its prefix cache, as old as the signals.

        Raises:
            RouterError: signals are snapshots, and the router lacks `reads_prefixes`.
        """


class Router(Protocol):
    """Picks a replica for each request, once.

    A class's constructor takes a `RouterSetting` first, then options. One object serves a whole run. The same setting
    and the same calls give the same picks, so chance comes from the seed.

    A router that reads cached prefixes has a class attribute `reads_prefixes = True`: only then are they kept with
    snapshots. One that reads no signals may have `reads_signals = False`: then replicas need not be up to date at each
    arrival, which saves time.
    """

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        """The number of the replica that serves the request, 0 to R - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSetting:
    """The setting of a router."""

    num_replicas: int  # R, >= 1
    seed: int = 0  # of its draws, >= 0


class RouterError(ValueError):
    """A router broke its contract; one line with its name, the request and what it did."""


CachedTokens = Callable[[Arrival], int]


class WatchedReplica(Protocol):
    """The interface of a replica for routers; reading changes nothing."""

    def signals(self) -> ReplicaSignals:
        """As it is now."""

    def cached_tokens(self, arrival: Arrival) -> int:
        """Tokens at the start of the prompt that the target's prefix cache holds now."""

    def first_blocks(self) -> FirstBlocks:
        """Of cached texts, a live view: a prompt that begins with none has nothing cached."""

    def frozen_prefixes(self) -> CachedTokens:
        """`cached_tokens` of a snapshot of the prefix cache, valid until the next call."""


class Dispatcher:
    """Routes requests, and checks the router's contract.

    Args:
        router: that picks.
        label: of the router, for messages.
        replicas: `[R]`, in order.
        stale_ps: time between two snapshots, >= 0; 0: signals are never stale.

    Attributes:
        looks: whether the router may read replicas when a request arrives, so that they must be up to date.
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
        self._numbers: Sequence[int] = range(len(self._replicas))
        self._later: Dispatcher | None = None
        self.take_snapshot()

    def before(self, later: "Dispatcher", numbers: Sequence[int]) -> "Dispatcher":
        """Route to replicas that hand over: `numbers` are theirs in the run, `later` picks the replicas that decode.

        Returns:
            This one; when it takes a snapshot, `later` does.
        """
        self._later, self._numbers = later, tuple(numbers)
        return self

    def next_snapshot_ps(self, now_ps: int) -> int | None:
        """When the next snapshot is due; None where signals are never stale."""
        return None if self._stale_ps == 0 else (now_ps // self._stale_ps + 1) * self._stale_ps

    def take_snapshot(self) -> None:
        """Take the signals of all replicas now; those that are never stale are read on demand."""
        self._take_own()
        if self._later is not None:
            self._later.take_snapshot()

    def _take_own(self) -> None:
        self._taken += 1
        if not self._stale_ps:
            self._signals = None
            return
        self._signals = tuple(replica.signals() for replica in self._replicas)
        if self._reads_prefixes:
            self._cached_tokens_of = tuple(replica.frozen_prefixes() for replica in self._replicas)

    def pick(self, arrival: Arrival) -> int:
        """The number of the replica for a request, which must be passed to it before the next one is routed.

        Raises:
            RouterError: the router raised, or did not pick a replica.
        """
        if self.looks:
            self._take_own()
        try:
            picked = self._router.pick(arrival, _Seen(self, arrival))
        except RouterError:
            raise
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise RouterError(f"{self._named(arrival)}: pick raised {told(error)}") from error
        return self._numbers[self._checked(picked, arrival)]

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


class _Seen:
    """See `Seen`; reads the dispatcher's snapshot."""

    __slots__ = ("_arrival", "_of")

    def __init__(self, dispatcher: Dispatcher, arrival: Arrival) -> None:
        self._of = dispatcher
        self._arrival = arrival

    @property
    def signals(self) -> Sequence[ReplicaSignals]:
        of = self._of
        if not of._reads_signals:
            raise RouterError(f"{of._named(self._arrival)}: asks for signals, and says reads_signals = False")
        if of._signals is None:
            of._signals = tuple(replica.signals() for replica in of._replicas)
        return of._signals

    @property
    def snapshot(self) -> int:
        return self._of._taken

    @property
    def cached(self) -> Mapping[int, int]:
        self._check_reads_prefixes()
        of = self._of
        asked: Iterable[int] = range(len(of._replicas)) if of._stale_ps else of._may_have(self._arrival)
        found = {replica: of._cached_tokens_of[replica](self._arrival) for replica in asked}
        return {replica: tokens for replica, tokens in found.items() if tokens}

    def cached_tokens(self, replica: int) -> int:
        self._check_reads_prefixes()
        return self._of._cached_tokens_of[replica](self._arrival)

    def _check_reads_prefixes(self) -> None:
        of = self._of
        if not of._reads_prefixes and (of._stale_ps or not of._reads_signals):
            stale = " of stale signals," if of._stale_ps else ","
            rule = f"asks for cached prefixes{stale} and does not say reads_prefixes = True"
            raise RouterError(f"{of._named(self._arrival)}: {rule}")


class RoundRobin:
    """The replica after the one picked last, from number 0 on."""

    reads_signals = False

    def __init__(self, setting: RouterSetting) -> None:
        self._num_replicas = setting.num_replicas
        self._next = 0

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        picked = self._next
        self._next = (picked + 1) % self._num_replicas
        return picked


# Weight of waiting requests in vLLM's data-parallel client (vllm/v1/engine/core_client.py: `waiting * 4 + running`).
WAITING_WEIGHT = 4
MEASURES = ("requests", "tokens", "kv")
Load = tuple[float, int]


class LoadMeasure:
    """The load of replicas, with requests that a router has sent since the signals were taken.

    Args:
        setting: of the router.
        by: "requests": 4 x waiting + running; "tokens": queued tokens; "kv": share of blocks in use, then as requests.
        count_sent: whether requests sent since the snapshot count as waiting, and their prompts as queued.

    Raises:
        ArgumentError: an unknown measure.
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
        self._first = 0  # of equally loaded ones: the first after the newest pick

    def pick(self, arrival: Arrival, seen: Seen, among: Iterable[int]) -> int:
        """The least loaded of some replicas, which gets the request; of equal ones the first after the newest pick."""
        if seen.snapshot != self._snapshot:
            self._snapshot = seen.snapshot
            for replica in self._sent_to:  # requests sent before a snapshot are in its signals
                self._sent[replica] = self._sent_tokens[replica] = 0
            self._sent_to.clear()
        first, count, signals = self._first, self._num_replicas, seen.signals
        loads = ((self._load(signals[replica], replica), (replica - first) % count, replica) for replica in among)
        _, _, picked = min(loads)
        if self._count_sent:
            self._sent_to.add(picked)
            self._sent[picked] += 1
            self._sent_tokens[picked] += arrival.prompt_tokens
        self._first = (picked + 1) % count
        return picked

    def _load(self, told: ReplicaSignals, replica: int) -> Load:
        if self._by == "tokens":
            return told.queued_tokens + self._sent_tokens[replica], 0
        requests = WAITING_WEIGHT * (told.waiting + self._sent[replica]) + told.running
        return (requests, 0) if self._by == "requests" else (1.0 - told.free_kv_share, requests)


class LeastLoaded:
    """The least loaded replica; of equal ones the next in turn.

    Args:
        setting: of the router.
        by: "requests" (4 x waiting + running), "tokens" (queued) or "kv" (share of blocks in use).
        count_sent: whether requests sent since the snapshot count, as in vLLM's data-parallel client; without that, all
            requests between two snapshots go to the same replica.
    """

    def __init__(self, setting: RouterSetting, *, by: str = "requests", count_sent: bool = True) -> None:
        self._load = LoadMeasure(setting, by, count_sent=count_sent)
        self._all = range(setting.num_replicas)

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        return self._load.pick(arrival, seen, self._all)


class PrefixAffinity:
    """The replica with the longest cached prefix, if it is long enough, else the least loaded one.

    Of replicas with equally long prefixes, the least loaded one. A prefix that many share makes its replica busy: this
    router does not avoid it.

    Args:
        setting: of the router.
        least_share: of the prompt that must be cached, in (0, 1].
        by, count_sent: see `LeastLoaded`.
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
        cached = seen.cached
        most = max(cached.values(), default=0)
        fits = most >= self._least_share * arrival.prompt_tokens
        among = [replica for replica, tokens in cached.items() if tokens == most] if fits else self._all
        return self._load.pick(arrival, seen, among)


class TwoChoices:
    """The less loaded of two (Mitzenmacher 2001, "The power of two choices in randomized load balancing").

    The two are drawn by seed and request id, so a request's two do not depend on earlier requests.

    Args:
        setting: of the router.
        by, count_sent: see `LeastLoaded`.
    """

    def __init__(self, setting: RouterSetting, *, by: str = "requests", count_sent: bool = True) -> None:
        self._load = LoadMeasure(setting, by, count_sent=count_sent)
        self._num_replicas = setting.num_replicas
        self._seed = setting.seed

    def pick(self, arrival: Arrival, seen: Seen) -> int:
        return self._load.pick(arrival, seen, self._drawn(arrival.request_id))

    def _drawn(self, request_id: str) -> tuple[int, ...]:
        """Two different replicas, or the only one."""
        if self._num_replicas == 1:
            return (0,)
        digest = blake2b(f"{self._seed} {request_id}".encode(), digest_size=16).digest()
        first = int.from_bytes(digest[:8], "big") % self._num_replicas
        second = int.from_bytes(digest[8:], "big") % (self._num_replicas - 1)
        return first, second + (second >= first)


RouterClass = Callable[..., Router]


class RouterSpecError(ValueError):
    """A router's text with an unknown name or option; one line."""


def own_routers() -> Mapping[str, RouterClass]:
    """The routers of this package by name."""
    return {
        "round-robin": RoundRobin,
        "least-loaded": LeastLoaded,
        "prefix-affinity": PrefixAffinity,
        "two-choices": TwoChoices,
    }


ROUTERS: NamedKind[RouterClass] = NamedKind(
    noun="router",
    group="paceline.routers",
    methods=("pick",),
    example="MyRouter",
    refused=RouterSpecError,
    own=own_routers,
    first="a RouterSetting",
)
