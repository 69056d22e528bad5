"""The runtime's side of prefix caches: what `decoding.prefixes` decides, done to the caches of a state manager.

Without prefix caches all of it does nothing, and an operation is one wave.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from ...decoding.contract import Draft, Verify
from ...decoding.prefixes.counts import NO_COUNTS, PrefixCounts
from ...decoding.prefixes.member_prefixes import Hit
from ...decoding.prefixes.pool_prefixes import PoolPrefixes
from ...decoding.session import Session
from ...decoding.trees.draft_tree import DraftTree
from ..kv.prefixed_kv import PrefixedKV
from .errors import CrowdedError, KVMemoryError
from .request_state import RequestState
from .state_manager import StateManager

Item = TypeVar("Item", bound=tuple[Session, Draft | DraftTree | Verify])


class PrefixSharing:
    """Mutates prefix caches, caches, request states, and what sessions say is cached.

    Args:
        manager: caches and requests.
        prefixes: the caches' logic, which the manager releases requests from; None for no prefix caches.
    """

    def __init__(self, manager: StateManager, prefixes: PoolPrefixes | None) -> None:
        self._manager = manager
        self._prefixes = prefixes

    @property
    def on(self) -> bool:
        """Whether there are prefix caches."""
        return self._prefixes is not None

    def waves(self, level: int, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The requests of an operation by the forward that reads their text; each runs before the next is asked for."""
        if self._prefixes is None:
            yield items
            return
        for wave in self._prefixes.waves(level, [session for session, _ in items]):
            yield [items[index] for index in wave]

    def find(self, level: int, sessions: Sequence[Session]) -> dict[str, Hit]:
        """Look up the texts of requests that a member has not read; what is found need not be fed."""
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
        """Make room for the forward of a wave, and let its requests read what was found.

        Args:
            level: of the member.
            found: by `find`, of these requests.
            fed: their states, and how many tokens each is fed.
            further: as of `StateManager.reserve`.
            kept: likewise.

        Returns:
            The requests without room, as `StateManager.reserve` has them; they read nothing.

        Raises:
            CrowdedError: as `StateManager.reserve`; then nothing was found.
        """
        # Rows of a cache may take slots side by side, so each has room for the longest text that is copied into one.
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
        """After a forward: let what it computed enter, in the order of the operation, but for broken logits.

        Args:
            level: of the member.
            states: of the requests that ran, in the order of the operation: where not all fits, the first ones enter.
            broken: those whose logits are not finite.
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
        """What the operation of a member that has just ended did."""
        return NO_COUNTS if self._prefixes is None else self._prefixes.take_counts(level)

    def _forget(self, level: int, found: Mapping[str, Hit]) -> None:
        """What `find` found was not read."""
        for request_id, hit in found.items():
            assert self._prefixes is not None
            state = self._manager.states[request_id]
            self._prefixes.take_back(level, state.session, hit)
            del state.fed[level]

    def _cache(self, level: int) -> PrefixedKV:
        cache = self._manager.cache(level)
        assert isinstance(cache, PrefixedKV)
        return cache
