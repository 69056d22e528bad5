"""What the caches of a run hold after each of its operations, and how much of it is live; apart from what is timed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..policies.spec import make_policy
from ..runtime.kv.member_kv import MemberKV
from ..runtime.memory import CacheKind, Memory
from ..runtime.pools.loaded_members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt
from ..runtime.run import Run, sessions_of
from ..runtime.world import TorchWorld
from .model_runs import GREEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Caches of all members after one operation.

    Attributes:
        held_slots, held_bytes: of memory taken.
        live_slots, live_bytes: of these, those whose token belongs to a text.
    """

    held_slots: int
    live_slots: int
    held_bytes: int
    live_bytes: int

    @property
    def dead_share(self) -> float:
        """Of the bytes held, 0 to 1; 0 where none are."""
        return 1 - self.live_bytes / self.held_bytes if self.held_bytes else 0.0


def watch_caches(
    pool: ModelPool, policy: str, prompts: Sequence[Prompt], *, max_new_tokens: int, batch: int, cache: CacheKind
) -> tuple[tuple[Held, ...], int]:
    """Decode once and look at the caches after every operation; also how often live slots were moved together."""
    world = TorchWorld(pool=pool, sampling=GREEDY, memory=Memory(cache=cache))
    run = Run(world, make_policy(policy, loaded_pool(pool)), name=policy)
    sessions = sessions_of(pool, prompts, max_new_tokens)
    held = tuple(_look(world.manager.caches.values()) for _ in run.driver.run(sessions, batch))
    return held, sum(getattr(one, "num_truncations", 0) for one in world.manager.caches.values())


def _look(caches: Collection[MemberKV]) -> Held:
    return Held(
        held_slots=sum(cache.held_slots for cache in caches),
        live_slots=sum(cache.live_slots for cache in caches),
        held_bytes=sum(cache.held_bytes for cache in caches),
        live_bytes=sum(cache.live_slots * cache.shape.bytes_per_slot for cache in caches),
    )
