"""How many slots the caches of a run hold, and how many of them are live; apart from what is timed."""

from statistics import fmean
from typing import NamedTuple

from contenders import GREEDY, Task
from paceline.policies import make_policy
from paceline.runtime.pools.loaded_pool import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.run_setup import Run, session_of
from paceline.runtime.world import CacheKind, Memory, TorchWorld


class Slots(NamedTuple):
    """Of all members' caches together, means over operations; bytes at their peak."""

    held: float
    live: float
    peak_bytes: int


def watch_slots(pool: ModelPool, task: Task, policy: str, *, batch: int, cache: CacheKind) -> Slots:
    """Decode once and look at the caches behind every operation."""
    world = TorchWorld(pool=pool, sampling=GREEDY, memory=Memory(cache=cache))
    run = Run(world, make_policy(policy, loaded_pool(pool)), name=policy)
    sessions = [session_of(pool, run.members, prompt, task.max_new_tokens) for prompt in task.prompts]
    held, live, peak_bytes = [], [], 0
    for _ in run.driver.run(sessions, batch):
        caches = world.manager.caches.values()
        held.append(sum(cache.held_slots for cache in caches))
        live.append(sum(cache.live_slots for cache in caches))
        peak_bytes = max(peak_bytes, world.manager.held_bytes)
    return Slots(fmean(held), fmean(live), peak_bytes)
