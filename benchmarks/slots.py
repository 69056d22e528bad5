"""How many slots the caches of a run hold, and how many of them are live; apart from what is timed."""

from statistics import fmean
from typing import NamedTuple

from contenders import GREEDY, Task
from paceline.policies import make_policy
from paceline.policies.loop import Loop
from paceline.policies.session import Session
from paceline.runtime.clock import Clock
from paceline.runtime.driver import Driver
from paceline.runtime.loaded_pool import loaded_pool
from paceline.runtime.pool import ModelPool
from paceline.runtime.world import CacheKind, Memory, TorchWorld
from paceline.traces.run_ledger import RunLedger


class Slots(NamedTuple):
    """Of all members' caches together, means over operations; bytes at their peak."""

    held: float
    live: float
    peak_bytes: int


def watch_slots(pool: ModelPool, task: Task, policy: str, *, batch: int, cache: CacheKind) -> Slots:
    """Decode once and look at the caches behind every operation."""
    members = loaded_pool(pool)
    clock, ledger = Clock(), RunLedger()
    world = TorchWorld(pool=pool, sampling=GREEDY, clock=clock, memory=Memory(cache=cache))
    loop = Loop(pool=members, policy=make_policy(policy, members), name=policy, world=world, ledger=ledger)
    sessions = [
        Session(
            pool=members,
            request_id=prompt.request_id,
            tag=prompt.tag,
            prompt=tuple(pool.encode(prompt.text)),
            budget=task.max_new_tokens,
            eos=pool.eos_token_id,
        )
        for prompt in task.prompts
    ]
    held, live, peak_bytes = [], [], 0
    for _ in Driver(loop, world, ledger, clock).run(sessions, batch):
        caches = world.manager.caches.values()
        held.append(sum(cache.held_slots for cache in caches))
        live.append(sum(cache.live_slots for cache in caches))
        peak_bytes = max(peak_bytes, world.manager.held_bytes)
    return Slots(fmean(held), fmean(live), peak_bytes)
