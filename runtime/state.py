"""What the runtime holds of running requests: a KV cache per pool member, and models' outputs for pending tokens.

Where memory of a device is short, first every cache is truncated to what is live, then the youngest request that holds
any of it is preempted: it frees all its memory, on other devices too, and recomputes when it runs again. Prefix caches
change the caches as `decoding.prefix_cache` decides; without them an operation is one wave. Numbers are rounded to the
grids of recordings, so that a policy sees the same in both worlds. Letters: N tokens, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count, pairwise
from math import exp
from typing import TypeVar

import torch
from torch import Tensor

from ..base.errors import ArgumentError
from ..decoding.prefix_cache import NO_COUNTS, Hit, PrefixCacheSize, PrefixCounts
from ..decoding.prefix_caches import PoolPrefixes
from ..decoding.rules import NO_SIGNAL, Signal
from ..decoding.session import Session
from ..decoding.steps import Draft, Verify
from ..decoding.trees import DraftTree
from ..traces.contexts.columns import ENTROPIES, LOG_PROBS, UNITS
from .caches import NO_MEMORY, SLOT_STEP, MemberKV, total_bytes
from .coupled_noise import RequestNoise
from .features import KnownStates
from .forward import ModelForward
from .pools.members import LoadedMembers
from .prefixed_kv import PrefixedKV, store_bytes
from .recording.views import entropies, gaps
from .rejection_sampling import Chance


class KVMemoryError(ValueError):
    """A request does not fit into KV memory even alone."""

    def __init__(
        self, request_id: str, member: str, num_tokens: int, needed_bytes: int, held_bytes: int, limit_bytes: int
    ) -> None:
        super().__init__(
            f"request {request_id}: {num_tokens} tokens in the cache of {member} take {needed_bytes:,} bytes (in steps "
            f"of slots), and the request's other caches {held_bytes:,}; the KV limit is {limit_bytes:,} bytes"
        )


class CrowdedError(Exception):
    """A member that runs beside others found no memory, and could take none from them; nothing was changed."""


class CacheDesyncError(ValueError):
    """A cache's content differs from what its session says; found by the checks of debug mode."""

    def __init__(self, request_id: str, member: str, problem: str) -> None:
        super().__init__(f"request {request_id}: the cache of {member} {problem}")


class PendingView:
    """Logits for one pending token, divided by the temperature and truncated as in the run.

    Mutated when a verifier accepts the token. `drafter` is `[V]` of the member that wrote it, at the context before it;
    None if it has no distribution over these tokens (prompt lookup, or another tokenizer). `judge` is the same of the
    member whose distribution the token now follows. `said` are the tokens that the drafter may write, as in `signals`.
    """

    __slots__ = ("_said", "_signal", "drafter", "judge", "token")

    def __init__(
        self, token: int, drafter: Tensor | None, said: Tensor | None = None, signal: Signal | None = None
    ) -> None:
        self.token = token
        self.drafter = drafter
        self.judge = drafter
        self._said = said
        self._signal = signal

    def signal(self) -> Signal:
        """The drafter's signal of the token; computed at the first call, NaN without a distribution."""
        if self._signal is None:
            drafter = self.drafter
            self._signal = NO_SIGNAL if drafter is None else signals(drafter[None], [self.token], self._said)[0]
        return self._signal


def signals(logits: Tensor, tokens: Sequence[int], said: Tensor | None = None) -> list[Signal]:
    """Signals of one token each from distributions `[N, V]`.

    `said`, ascending `[K]`, are the tokens that may have a finite logit, one of them the token; None: all.
    """
    index = torch.as_tensor(tokens, device=logits.device)
    if said is not None:
        logits, index = logits.index_select(-1, said), torch.searchsorted(said, index)
    log_probs = torch.log_softmax(logits, dim=-1)
    probs = logits.softmax(dim=-1)  # `exp` takes five times as long on a CPU, longest where logits are -inf
    found = torch.stack([log_probs.gather(-1, index[:, None])[:, 0], entropies(probs, log_probs), gaps(probs)]).tolist()
    return [
        Signal(exp(LOG_PROBS.nearest(log_prob)), ENTROPIES.nearest(nats), UNITS.nearest(lead))
        for log_prob, nats, lead in zip(*found, strict=True)
    ]


class RequestState:
    """The tokens fed to each member, and views of the pending tokens. Mutated by the executor only.

    The session is read only here. `number` is the order of admission; the youngest is preempted first. `noise` is for
    coupled sampling and `chance` for rejection sampling, else None. `fed` holds by level the tokens in the member's
    cache, oldest first, in its own tokenizer; `views` are by place (`Session.places`). `known` are hidden states, where
    a member of the pool reads them.
    """

    __slots__ = ("_places", "chance", "fed", "known", "noise", "number", "request_id", "session", "views")

    def __init__(self, session: Session, number: int, *, noise: RequestNoise | None, chance: Chance | None) -> None:
        self.session = session
        self.request_id = session.request_id
        self.number = number
        self.noise = noise
        self.chance = chance
        self.fed: dict[int, list[int]] = {}
        self.views: dict[int, PendingView] = {}
        self.known = KnownStates()
        self._places = count(1)  # unique also for members that run at the same time

    def add(self, view: PendingView) -> int:
        """Add a token's view; returns its place."""
        place = next(self._places)
        self.views[place] = view
        return place

    def at_once(self, level: int, num_fed: int) -> int:
        """Of the tokens that a member is fed now, up to the end of the text, the number in its first forward."""
        return self.session.at_once(level, num_fed, self.session.context_tokens - num_fed)

    def forget_all_but(self, places: Sequence[int]) -> None:
        """Drop the views of tokens that are no longer pending, and the noise of committed ones."""
        if self.noise is not None:
            self.noise.drop_before(len(self.session.emitted))
        views = self.views
        if len(views) != len(places):
            self.views = {place: views[place] for place in places}


class StateManager:
    """Owns caches and request states. Mutated by the executor and its processors.

    Args:
        names: of the members, by level.
        make_cache: builds the cache of a level when a request first needs it.
        limits: bytes of all caches on a device, >= 1 (checked by `Memory`); devices without one have all their memory.
        shared: whether other processes run the same requests. They would not see that a device here is full, so that is
            an error.
        prefixes: prefix caches of the members, from which requests are released; None: there are none.

    Attributes:
        states: of running requests, by id.
        caches: by level; only those that some request needed.
        num_preempted: times a request gave up its memory.
        evicted: requests that lost their memory to an operation of others; cleared by the code that reports them.
        beside: whether other members run in threads right now: caches that they read must not be moved.
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
        """Share of the limit without live tokens, on the fullest device, 0 to 1; 1 without a limit."""
        share = 1.0
        for device, limit in self._limits.items():
            live = sum(cache.live_slots * cache.shape.bytes_per_slot for cache in self._beside(device))
            share = min(share, max(0.0, 1.0 - live / limit))
        return share

    def open(self, state: RequestState) -> None:
        """Add a request; it holds no memory yet."""
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
        """Drop all caches and requests. Sessions are not updated: they must not be used any more."""
        self.caches.clear()
        self.states.clear()

    def cache(self, level: int) -> MemberKV:
        """The cache of a member."""
        cache = self.caches.get(level)
        if cache is None:
            cache = self.caches[level] = self._make_cache(level)
        return cache

    def roll_back(self, state: RequestState, level: int, num_tokens: int) -> None:
        """Let a member drop all except the first tokens of a request; moves no data."""
        fed = state.fed.get(level)
        if fed is not None and len(fed) > num_tokens:
            del fed[num_tokens:]
            self.caches[level].roll_back(state.request_id, num_tokens)

    def keep_path(self, state: RequestState, level: int, num_tokens: int, kept: Sequence[int]) -> None:
        """Let a member keep a request's first tokens and, of those fed after them, these, by ascending index."""
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
            further: tokens of each after it, one a forward, >= 0; None: there are none.
            kept: requests that are not preempted, since they ran in the same operation; none of `states`.

        Returns:
            The requests without room, which have lost all their memory: None if there may be room when others are done,
                the error if the request does not fit even alone.

        Raises:
            CrowdedError: no memory without taking it from members that run `beside`.
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
            # The latest admitted request that holds memory in these caches or needs some here, and may be preempted.
            holders = {request_id for cache in caches for request_id in cache.rows}
            able = [self.states[request_id] for request_id in (holders | set(wanted)).difference(kept)]
            victim = max(able, key=lambda state: state.number)
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
        return [cache for cache in self.caches.values() if cache.shape.device == device]

    def _reserved(self, level: int, wanted: dict[str, list[int]]) -> bool:
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
            # A smaller copy needs memory too; without it, a request must be preempted first.
            with suppress(*(() if self._shared else NO_MEMORY)):
                cache.truncate()

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
        """Compare the caches of a request with its session, between two operations.

        `foreign` are levels whose caches are in tokens of another tokenizer; the session says nothing about them.

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
    """What is wrong with the slots of a request; None if they are right."""
    slots = cache.live_slots_of(request_id)
    if any(slot >= following for slot, following in pairwise(slots)):
        return "has positions out of order"
    row = cache.rows.get(request_id)
    if sum(other == row for other in cache.rows.values()) > 1:
        return "shares its row with another request"
    return None


Item = TypeVar("Item", bound=tuple[Session, Draft | DraftTree | Verify])


class PrefixSharing:
    """Mutates prefix caches, caches, request states, and sessions' `cached`.

    `prefixes` is the caches' logic, from which the manager releases requests; None, and `on` False: no prefix caches.
    """

    def __init__(self, manager: StateManager, prefixes: PoolPrefixes | None) -> None:
        self.on = prefixes is not None
        self._manager = manager
        self._prefixes = prefixes

    def waves(self, level: int, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The requests of an operation by the forward that reads their text; each must run before the next is taken."""
        if self._prefixes is None:
            yield items
            return
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            yield [items[index] for index in wave]

    def find(self, level: int, sessions: Sequence[Session]) -> dict[str, Hit]:
        """Look up the texts of requests that a member has not read; found tokens need not be fed."""
        found: dict[str, Hit] = {}
        if self._prefixes is not None:
            for session in sessions:
                hit = self._prefixes.look_up(level, session)
                if hit is not None:
                    found[session.request_id] = hit
                    state = self._manager.states[session.request_id]
                    state.fed[level] = [*session.prompt, *session.emitted][: hit.num_tokens]
        return found

    def begin(
        self,
        level: int,
        found: Mapping[str, Hit],
        fed: Sequence[tuple[RequestState, int]],
        further: Sequence[int] | None = None,
        *,
        kept: Collection[str] = (),
    ) -> dict[str, KVMemoryError | None]:
        """Make room for the forward of a wave, and let its requests read the hits `found` (by `find`).

        `fed` has their states and numbers of tokens to feed; `further` and `kept` are as of `StateManager.reserve`.
        Returns the requests without room, as `reserve` does; they read nothing.

        Raises:
            CrowdedError: as `StateManager.reserve`; then no hit is used.
        """
        # Rows of a cache may take the same columns, so each has room for the longest text that is copied into one.
        copied = max((hit.branch.num_equal for hit in found.values() if hit.branch is not None), default=0)
        counts = [copied + count for _, count in fed]
        try:
            refused = self._manager.reserve(level, [state for state, _ in fed], counts, further, kept=kept)
        except CrowdedError:
            self._forget(level, found)
            raise
        hits = [(request_id, hit) for request_id, hit in found.items() if request_id not in refused]
        if hits:
            self._cache(level).attach(hits)
        return refused

    def absorb(self, level: int, states: Sequence[RequestState], broken: Collection[str]) -> None:
        """After a forward: let its blocks enter the prefix cache, in the operation's order, except for broken logits.

        `states` are of the requests that ran: if not all fit, the first ones enter. The logits of `broken` are not
        finite.
        """
        if self._prefixes is None:
            return
        entered = []
        for state in states:
            if state.request_id not in broken:
                blocks = self._prefixes.enter(level, state.session)
                if blocks is not None and blocks.blocks:
                    entered.append((state.request_id, blocks))
        if entered:
            self._cache(level).absorb(entered)

    def take_counts(self, level: int) -> PrefixCounts:
        """Take the counts of a member's last operation."""
        return NO_COUNTS if self._prefixes is None else self._prefixes.take_counts(level)

    def _forget(self, level: int, found: Mapping[str, Hit]) -> None:
        for request_id, hit in found.items():
            assert self._prefixes is not None
            state = self._manager.states[request_id]
            self._prefixes.take_back(level, state.session, hit)
            del state.fed[level]

    def _cache(self, level: int) -> PrefixedKV:
        cache = self._manager.cache(level)
        assert isinstance(cache, PrefixedKV)
        return cache


def check_shareable(
    pool: LoadedMembers,
    forwards: Mapping[int, ModelForward],
    size: PrefixCacheSize,
    limits: Mapping[torch.device, int],
) -> None:
    """Raise ArgumentError for a pool whose members cannot each have a prefix cache of this size.

    `forwards` are by level; `limits` are bytes of all caches, by device.

    Raises:
        ArgumentError: a compiled forward, several processes, a drafter from hidden states or with a tokenizer of its
            own, or a limit, or a device without one, that leaves no room beside the blocks.
    """
    if pool.ranks is not None:
        raise ArgumentError(f"`prefix_cache` goes with one process, got {pool.ranks.num_ranks}")
    needed: dict[torch.device, int] = {}
    for level, forward in forwards.items():
        member = pool.members[level]
        if forward.name == "compiled":
            raise ArgumentError(f"`forward` must not be compiled with `prefix_cache`, got compiled for {member.name}")
        if member.from_features:
            rule = "reads hidden states, which a prefix cache does not hold"
            raise ArgumentError(f"`prefix_cache` does not go with {member.name}, which {rule}")
        if member.tokenizer is not None:
            raise ArgumentError(f"`prefix_cache` goes with one tokenizer, and {member.name} has one of its own")
        device = forward.kv_shape.device
        needed[device] = needed.get(device, 0) + store_bytes(forward.kv_shape, size)
    for device, taken in needed.items():
        blocks = f"{size.num_blocks} blocks of {size.block_tokens} tokens take of all members there"
        if device in limits and taken >= limits[device]:
            raise ArgumentError(f"`limit_bytes` of {device} must be > {taken}, which {blocks}, got {limits[device]}")
        total = total_bytes(device)
        if taken >= total:
            raise ArgumentError(
                f"`prefix_cache` must fit into the {total} bytes of {device}, got {taken}, which {blocks}"
            )
