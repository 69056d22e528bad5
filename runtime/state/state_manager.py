"""One KV cache per pool member for all running requests, and the memory of their devices.

When that of a device is short: first every cache there is truncated to what is live, then the youngest request that
holds any of it gives up all it has, elsewhere too. It recomputes when its turn comes again; no request is lost.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import torch

from ...decoding.prefixes.pool_prefixes import PoolPrefixes
from ...decoding.session import Session
from ..kv.member_kv import SLOT_STEP, MemberKV
from ..kv.zeros import NO_MEMORY
from .errors import CacheDesyncError, CrowdedError, KVMemoryError
from .request_state import RequestState


class StateManager:
    """Owns caches and request states. Mutated by the executor and its processors.

    Args:
        names: of the members, by level.
        make_cache: builds the cache of a level when a request first needs it.
        limits: bytes of all caches on a device, >= 1 (checked by `Memory`); of those not named, whatever they have.
        shared: whether other processes do the same. They would not know that a device here is full, so it is an error.
        prefixes: prefix caches of the members, from which requests are released; None for none.

    Attributes:
        states: of running requests, by id.
        caches: by level; only those some request needed.
        num_preempted: times a request gave up its memory.
        evicted: requests that gave up their memory to an operation they had no part in; whoever reports them clears it.
        beside: whether other members are at work in threads right now: caches that they read must stay where they are.
    """

    def __init__(
        self,
        names: Sequence[str],
        make_cache: Callable[[int], MemberKV],
        *,
        limits: Mapping[torch.device, int] | None = None,
        shared: bool = False,
        prefixes: PoolPrefixes | None = None,
    ) -> None:
        self.states: dict[str, RequestState] = {}
        self.caches: dict[int, MemberKV] = {}
        self.num_preempted = 0
        self.evicted: list[str] = []
        self.beside = False
        self._names = tuple(names)
        self._make_cache = make_cache
        self._limits = limits or {}
        self._shared = shared
        self._prefixes = prefixes

    @property
    def held_bytes(self) -> int:
        """Memory of all caches."""
        return sum(cache.held_bytes for cache in self.caches.values())

    @property
    def free_share(self) -> float:
        """Share of the limit that no live token takes, of the device that is fullest, 0 to 1; 1 without a limit."""
        share = 1.0
        for device, limit in self._limits.items():
            live = sum(cache.live_slots * cache.shape.bytes_per_slot for cache in self._beside(device))
            share = min(share, max(0.0, 1.0 - live / limit))
        return share

    def open(self, state: RequestState) -> None:
        """Take in a request; it holds no memory yet."""
        self.states[state.request_id] = state

    def close(self, request_id: str) -> None:
        """Free everything a request holds."""
        del self.states[request_id]
        self._release(request_id)

    def give_up(self, request_id: str) -> None:
        """Drop all caches of a request; it will be fed its whole context again."""
        self._release(request_id)
        victim = self.states[request_id]
        victim.fed.clear()
        victim.session.forget_caches()
        self.num_preempted += 1

    def drop_all(self) -> None:
        """Drop all caches and requests, whose sessions are not told: nothing more is asked of them."""
        self.caches.clear()
        self.states.clear()

    def cache(self, level: int) -> MemberKV:
        """The cache of a member."""
        cache = self.caches.get(level)
        if cache is None:
            cache = self.caches[level] = self._make_cache(level)
        return cache

    def roll_back(self, state: RequestState, level: int, num_tokens: int) -> None:
        """Let a member forget all but the first tokens of a request; moves no data."""
        fed = state.fed.get(level)
        if fed is not None and len(fed) > num_tokens:
            del fed[num_tokens:]
            self.caches[level].roll_back(state.request_id, num_tokens)

    def keep_path(self, state: RequestState, level: int, num_tokens: int, kept: Sequence[int]) -> None:
        """Let a member hold of a request its first tokens and, of those fed after them, these, by ascending index."""
        fed = state.fed[level]
        fed[num_tokens:] = [fed[num_tokens + index] for index in kept]
        self.caches[level].keep_path(state.request_id, num_tokens, kept)

    # -- memory

    def reserve(
        self,
        level: int,
        states: Sequence[RequestState],
        counts: Sequence[int],
        further: Sequence[int] | None = None,
        *,
        kept: Collection[str] = (),
    ) -> dict[str, KVMemoryError | None]:
        """Make room in a member's cache for a forward, and for those of one token each after it.

        Args:
            level: of the member.
            states: of the requests.
            counts: tokens of each request in the first forward, >= 1.
            further: tokens of each after it, one a forward, >= 0; None for none.
            kept: requests that give up nothing, since they ran in the same operation; none of `states`.

        Returns:
            The requests without room, which have given up all memory they had: None where it may come back when others
            are done, the error where the request does not fit even alone.

        Raises:
            CrowdedError: no memory without taking it from members at work `beside`.
        """
        requests = [state.request_id for state in states]
        if not requests or not self.cache(level).extra_bytes(requests, counts, further or ()):
            return {}
        more = further or [0] * len(counts)
        wanted = {state.request_id: both for state, *both in zip(states, counts, more, strict=True)}
        refused: dict[str, KVMemoryError | None] = {}
        truncated = False
        while wanted and not self._reserved(level, wanted):
            caches = self._beside(self.cache(level).shape.device)
            if not truncated:
                self._truncate(caches)
                truncated = True
                continue
            victim = self._youngest(caches, wanted, kept)
            asked = wanted.pop(victim.request_id, None)
            if asked is None:
                self.evicted.append(victim.request_id)
            else:
                alone = not wanted and all(set(cache.rows) <= {victim.request_id} for cache in caches)
                refused[victim.request_id] = self._too_long(level, victim, sum(asked)) if alone else None
            self.give_up(victim.request_id)
            truncated = False
        return refused

    def _beside(self, device: torch.device) -> list[MemberKV]:
        """The caches on a device, which share its memory."""
        return [cache for cache in self.caches.values() if cache.shape.device == device]

    def _reserved(self, level: int, wanted: dict[str, list[int]]) -> bool:
        """Whether the cache now has memory for the tokens."""
        cache = self.cache(level)
        counts, further = zip(*wanted.values(), strict=True)
        extra = cache.extra_bytes(list(wanted), counts, further)
        if extra <= 0:
            return True
        device = cache.shape.device
        limit = self._limits.get(device)
        if limit is not None and sum(other.held_bytes for other in self._beside(device)) + extra > limit:
            return False
        try:
            cache.reserve(list(wanted), counts, further)
        except NO_MEMORY:
            if self._shared:
                raise MemoryError(f"{device} has no room for more keys and values; give a KV limit") from None
            if self.beside:
                raise CrowdedError from None
            return False
        return True

    def _truncate(self, caches: Iterable[MemberKV]) -> None:
        for cache in caches:
            # A smaller copy needs memory, too; where there is none, a request must give up its own first.
            with suppress(*(() if self._shared else NO_MEMORY)):
                cache.truncate()

    def _youngest(self, caches: Sequence[MemberKV], wanted: Collection[str], kept: Collection[str]) -> RequestState:
        """The latest admitted request that holds memory in these caches or wants some here, and may lose it."""
        holders = {request_id for cache in caches for request_id in cache.rows}
        able = (holders | set(wanted)).difference(kept)
        return max((self.states[request_id] for request_id in able), key=lambda state: state.number)

    def _release(self, request_id: str) -> None:
        for cache in self.caches.values():
            cache.free(request_id)
        if self._prefixes is not None:
            self._prefixes.release(request_id)

    def _too_long(self, level: int, state: RequestState, count: int) -> KVMemoryError:
        cache = self.cache(level)
        device = cache.shape.device
        together = sum(other.held_bytes for other in self._beside(device))
        tokens = cache.length(state.request_id) + count
        needed = -(-tokens // SLOT_STEP) * SLOT_STEP * cache.shape.bytes_per_slot
        limit = self._limits.get(device, together)
        elsewhere = together - cache.held_bytes
        return KVMemoryError(state.request_id, self._names[level], tokens, needed, elsewhere, limit)

    # -- checks

    def check(self, session: Session, *, foreign: frozenset[int] = frozenset()) -> None:
        """Compare what caches hold of a request with what its session says.

        Args:
            session: of the request, between two operations.
            foreign: levels whose caches are in tokens of another tokenizer; the session cannot speak for them.

        Raises:
            CacheDesyncError: lengths or tokens differ, or a slot is shared or out of order.
        """
        state = self.states[session.request_id]
        context = session.tail(0)
        for level, cache in self.caches.items():
            fed = state.fed.get(level, [])
            held = session.cached[level]
            # A pending tree's drafter holds nodes beyond the text, in its own order.
            grew = (
                session.tree is not None
                and level == session.drafters[0]
                and held == session.num_prompt + len(session.emitted)
            )
            beyond = session.tree.num_fed if session.tree is not None and grew else 0
            problem = None
            if cache.length(state.request_id) != len(fed):
                problem = f"holds {cache.length(state.request_id)} tokens, but was fed {len(fed)}"
            elif level not in foreign and len(fed) != held + beyond:
                problem = f"holds {len(fed)} tokens, not {held + beyond}"
            elif level not in foreign and fed[:held] != context[:held]:
                problem = "holds another text"
            else:
                problem = _misplaced(cache, state.request_id)
            if problem is not None:
                raise CacheDesyncError(state.request_id, self._names[level], problem)


def _misplaced(cache: MemberKV, request_id: str) -> str | None:
    """What is wrong with the slots of a request; None if nothing is."""
    slots = cache.live_slots_of(request_id)
    if any(slot >= following for slot, following in pairwise(slots)):
        return "has positions out of order"
    row = cache.rows.get(request_id)
    if sum(other == row for other in cache.rows.values()) > 1:
        return "shares its row with another request"
    return None
