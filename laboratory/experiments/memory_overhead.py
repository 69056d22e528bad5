"""Memory of keys and values by depth of the chain and kind of cache: what is held, what is live, what is dead.

A slot is *live* if its token belongs to a request's text, and *dead* otherwise: rolled back, a hole, or memory that was
taken in a step and is not used yet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from ...counted import counted
from ...policies.spec import make_policy
from ...studies.runtime_door import runtime_module
from ...traces.meta import Sampling
from ..finding import Column, Finding, Panel, Rows, Series, Setting, x_of
from ..live_runs import pool_of, prompts_of

if TYPE_CHECKING:
    from ...runtime.kv import MemberKV
    from ...runtime.pools.pool import ModelPool
    from ...runtime.prompts import Prompt
    from ...runtime.world import CacheKind

CACHES: "tuple[CacheKind, ...]" = ("slots", "mask")
BATCH, PROMPTS, NEW_TOKENS = 8, 16, 48
WINDOW_STEP = 3  # the first handover's window, and how many more each one above takes
POINTS = 40  # of the curve over time


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Caches of all members behind one operation.

    Attributes:
        held_bytes: of memory taken.
        live_bytes: of slots whose token belongs to a text.
    """

    held_bytes: int
    live_bytes: int

    @property
    def dead_share(self) -> float:
        """Of the bytes held, 0 to 1; 0 where none are."""
        return 1 - self.live_bytes / self.held_bytes if self.held_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run: a chain, a kind of cache, and what was held behind each of its operations.

    Attributes:
        chain: in the notation of chains.
        depth: members of the chain.
        cache: kind.
        token_bytes: of one token in the caches of all members of the chain.
        held: in order of time.
        num_truncations: times live slots were moved together.
    """

    chain: str
    depth: int
    cache: str
    token_bytes: int
    held: tuple[Held, ...]
    num_truncations: int

    @property
    def peak_bytes(self) -> int:
        """Most held."""
        return max(one.held_bytes for one in self.held)

    @property
    def mean_held_bytes(self) -> float:
        """Over operations."""
        return fmean(one.held_bytes for one in self.held)

    @property
    def mean_live_bytes(self) -> float:
        """Over operations."""
        return fmean(one.live_bytes for one in self.held)

    @property
    def dead_share(self) -> float:
        """Of the mean bytes held, 0 to 1."""
        return 1 - self.mean_live_bytes / self.mean_held_bytes


def run(setting: Setting) -> Finding:
    """Decode the same prompts under chains of growing depth with both kinds of cache."""
    pool = pool_of(setting)
    prompts = prompts_of(setting, PROMPTS)
    watched = [_watched(pool, prompts, depth, cache) for depth in range(1, len(pool.members) + 1) for cache in CACHES]
    return Finding(
        question="What do deeper chains cost in memory of keys and values, and how much of it is dead?",
        tables=(_table(watched, len(prompts)),),
        panels=_panels(watched),
        answer=_answer(watched),
    )


def _watched(pool: "ModelPool", prompts: "Sequence[Prompt]", depth: int, cache: "CacheKind") -> Watched:
    """Decode under the chain of the pool's last members and look at the caches behind every operation."""
    world_module = runtime_module("world")
    setup = runtime_module("run_setup")
    members = pool.members[-depth:]
    chain = _chain([member.name for member in members])
    world = world_module.TorchWorld(
        pool=pool, sampling=Sampling(mode="greedy"), memory=world_module.Memory(cache=cache)
    )
    run_of = setup.Run(world, make_policy(chain, runtime_module("pools.loaded_pool").loaded_pool(pool)), name=chain)
    sessions = [setup.session_of(pool, run_of.members, prompt, NEW_TOKENS) for prompt in prompts]
    held = [_look(world.manager.caches.values()) for _ in run_of.driver.run(sessions, BATCH)]
    return Watched(
        chain=chain,
        depth=depth,
        cache=cache,
        token_bytes=sum(member.kv_bytes_per_token for member in members),
        held=tuple(held),
        num_truncations=sum(getattr(one, "num_truncations", 0) for one in world.manager.caches.values()),
    )


def _chain(names: Sequence[str]) -> str:
    """Windows grow with the level: 3, 6, 9, ..."""
    handed = [f"{name}:{WINDOW_STEP * place}" for place, name in enumerate(names[:-1], start=1)]
    return "/".join([*handed, names[-1]])


def _look(caches: "Iterable[MemberKV]") -> Held:
    held = live = 0
    for cache in caches:
        held += cache.held_bytes
        live += cache.live_slots * cache.shape.bytes_per_slot
    return Held(held_bytes=held, live_bytes=live)


def _table(watched: Sequence[Watched], num_prompts: int) -> Rows:
    kib = 1024
    rows = tuple(
        (
            one.depth,
            one.chain,
            one.cache,
            one.token_bytes,
            one.peak_bytes / kib,
            one.mean_held_bytes / kib,
            one.mean_live_bytes / kib,
            one.dead_share * 100,
            one.num_truncations if one.cache == "mask" else None,
        )
        for one in watched
    )
    columns = (
        Column(name="members"),
        Column(name="chain"),
        Column(name="cache"),
        Column(name="a token", unit="bytes"),
        Column(name="held at most", unit="KiB", digits=0),
        Column(name="held in the mean", unit="KiB", digits=0),
        Column(name="live in the mean", unit="KiB", digits=0),
        Column(name="dead", unit="%", digits=1),
        Column(name="truncations"),
    )
    title = f"{counted(num_prompts, 'prompt')}, {NEW_TOKENS} new tokens, batch {BATCH}; means over operations"
    return Rows(title=title, columns=columns, rows=rows)


def _panels(watched: Sequence[Watched]) -> tuple[Panel, ...]:
    depths = sorted({one.depth for one in watched})
    places = x_of(depths)
    by_kind = {cache: [one for one in watched if one.cache == cache] for cache in CACHES}
    bars = [
        Series(name=f"held, {cache}", x=places, y=tuple(one.mean_held_bytes / 2**20 for one in ones))
        for cache, ones in by_kind.items()
    ]
    live = Series(name="live", x=places, y=tuple(one.mean_live_bytes / 2**20 for one in by_kind["slots"]))
    middle = depths[len(depths) // 2]
    curves = [_curve(one, f"held, {one.cache}") for one in watched if one.depth == middle]
    return (
        Panel(
            title="memory by depth, mean over a run",
            x_label="members of the chain",
            y_label="MiB of keys and values",
            kind="bar",
            categories=tuple(map(str, depths)),
            series=(*bars, live),
        ),
        Panel(
            title=f"dead share over time, {next(one.chain for one in watched if one.depth == middle)}",
            x_label="share of the run's operations",
            y_label="dead, % of bytes held",
            series=tuple(curves),
        ),
    )


def _curve(one: Watched, name: str) -> Series:
    """Dead share in the mean over each of so many stretches of the run."""
    count = min(POINTS, len(one.held))
    edges = [round(place * len(one.held) / count) for place in range(count + 1)]
    stretches = [one.held[edges[place] : edges[place + 1]] for place in range(count)]
    return Series(
        name=name,
        x=tuple((place + 0.5) / count for place in range(count)),
        y=tuple(fmean(held.dead_share for held in stretch) * 100 for stretch in stretches),
    )


def _answer(watched: Sequence[Watched]) -> str:
    by_kind = {cache: [one for one in watched if one.cache == cache] for cache in CACHES}
    slots, mask = by_kind["slots"], by_kind["mask"]
    deepest = slots[-1]
    ratio = deepest.token_bytes / slots[0].token_bytes
    peaks = deepest.peak_bytes / slots[0].peak_bytes
    extra = [other.mean_held_bytes / one.mean_held_bytes - 1 for one, other in zip(slots, mask, strict=True)]
    return (
        f"A chain of all {deepest.depth} members keeps {ratio:.2f} times the bytes of the target alone per token, and "
        f"held {peaks:.2f} times as many at its peak with slots. "
        f"With slots {min(one.dead_share for one in slots):.0%} to {max(one.dead_share for one in slots):.0%} of what "
        f"is held is dead, with masks {min(one.dead_share for one in mask):.0%} to "
        f"{max(one.dead_share for one in mask):.0%}. "
        f"For the same text masks hold {min(extra):+.0%} to {max(extra):+.0%} against slots, by depth."
    )
