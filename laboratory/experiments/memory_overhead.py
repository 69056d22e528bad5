"""Memory of keys and values by depth of the chain and kind of cache: what is held, what is live, what is dead.

A slot is *live* if its token belongs to a request's text, and *dead* otherwise: rolled back, a hole, or memory that was
taken in a step and is not used yet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paceline.base.errors import counted
from paceline.reports.panels import Panel, Series, by_category
from paceline.runtime.forward_kinds import CacheKind
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt

from ..findings import Cell, ExperimentSetting, Finding, table, table_cell
from ..replays import chain
from ..shared import Held, pool_of, prompts_of, watch_caches

CACHES: tuple[CacheKind, ...] = ("slots", "mask")
BATCH, PROMPTS, NEW_TOKENS = 8, 16, 48
WINDOW_STEP = 3  # the first handover's window, and the increase of each one above
POINTS = 40  # of the curve over time


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run: a chain, a kind of cache, and what was held after each of its operations."""

    chain: str  # in the notation of chains
    depth: int  # members of the chain
    cache: str  # kind
    token_bytes: int  # of one token in the caches of all members of the chain
    held: tuple[Held, ...]  # in order of time
    num_truncations: int  # times live slots were moved together

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


def run(setting: ExperimentSetting) -> Finding:
    """Decode the same prompts under chains of growing depth with both kinds of cache."""
    pool = pool_of(setting)
    prompts = prompts_of(setting, PROMPTS)
    watched = [_watched(pool, prompts, depth, cache) for depth in range(1, len(pool.members) + 1) for cache in CACHES]
    asked = counted(len(prompts), "prompt")
    title = f"{asked}, {NEW_TOKENS} new tokens, batch {BATCH}; means over operations"
    return Finding(
        question="What do deeper chains cost in memory of keys and values, and how much of it is dead?",
        tables=(table(title, map(_row, watched)),),
        panels=_panels(watched),
        answer=_answer(watched),
    )


def _watched(pool: ModelPool, prompts: Sequence[Prompt], depth: int, cache: CacheKind) -> Watched:
    """Decode under the chain of the pool's last members; windows grow with the level: 3, 6, 9, ..."""
    members = pool.members[-depth:]
    name = chain([member.name for member in members], range(WINDOW_STEP, WINDOW_STEP * depth, WINDOW_STEP))
    held, truncations = watch_caches(pool, name, prompts, max_new_tokens=NEW_TOKENS, batch=BATCH, cache=cache)
    return Watched(
        chain=name,
        depth=depth,
        cache=cache,
        token_bytes=sum(member.kv_bytes_per_token for member in members),
        held=held,
        num_truncations=truncations,
    )


def _row(one: Watched) -> list[Cell]:
    kib = 1024
    return [
        table_cell("members", one.depth),
        table_cell("chain", one.chain),
        table_cell("cache", one.cache),
        table_cell("a token", one.token_bytes, "bytes"),
        table_cell("held at most", one.peak_bytes / kib, "KiB", 0),
        table_cell("held in the mean", one.mean_held_bytes / kib, "KiB", 0),
        table_cell("live in the mean", one.mean_live_bytes / kib, "KiB", 0),
        table_cell("dead", one.dead_share * 100, "%", 1),
        table_cell("truncations", one.num_truncations if one.cache == "mask" else None),
    ]


def _panels(watched: Sequence[Watched]) -> tuple[Panel, ...]:
    depths = sorted({one.depth for one in watched})
    by_kind = {cache: [one for one in watched if one.cache == cache] for cache in CACHES}
    bars = {f"held, {cache}": [one.mean_held_bytes / 2**20 for one in ones] for cache, ones in by_kind.items()}
    bars["live"] = [one.mean_live_bytes / 2**20 for one in by_kind["slots"]]
    middle = [one for one in watched if one.depth == depths[len(depths) // 2]]
    return (
        by_category(
            "memory by depth, mean over a run",
            "MiB of keys and values",
            depths,
            bars,
            x_label="members of the chain",
        ),
        Panel(
            title=f"dead share over time, {middle[0].chain}",
            x_label="share of the run's operations",
            y_label="dead, % of bytes held",
            series=tuple(_curve(one, f"held, {one.cache}") for one in middle),
        ),
    )


def _curve(one: Watched, name: str) -> Series:
    """Mean dead share over each of `POINTS` stretches of the run."""
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
