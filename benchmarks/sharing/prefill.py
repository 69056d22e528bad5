"""Seconds and bytes of reading one prompt for several rollouts, with a prefix cache and without.

python benchmarks/sharing/prefill.py [--tokens 256] [--rollouts 16] [--runs 15]
"""

from argparse import ArgumentParser
from statistics import median

import torch
from paceline.decoding.contract import Verify
from paceline.decoding.prefixes.size import PrefixCacheSize
from paceline.decoding.session import Session
from paceline.decoding.world import VerifyItem
from paceline.laboratory.findings.table import Cell, cell, markdown_table, table
from paceline.runtime.memory import Memory
from paceline.runtime.pools.loaded_members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.world import TorchWorld
from paceline.studies.pool import load_pool
from paceline.traces.meta import Sampling

BLOCK_TOKENS = 16


def items_of(pool: ModelPool, prompt: tuple[int, ...], count: int) -> list[VerifyItem]:
    members = loaded_pool(pool)
    step = Verify(members.target)
    return [
        (Session(pool=members, request_id=str(number), tag="", prompt=prompt, budget=8, eos=frozenset()), step)
        for number in range(count)
    ]


def prefill(pool: ModelPool, prompt: tuple[int, ...], count: int, *, shared: bool) -> tuple[float, int, int]:
    """Seconds, tokens fed, and bytes held in rows and in the blocks that were taken, of the target."""
    size = PrefixCacheSize(num_blocks=-(-len(prompt) // BLOCK_TOKENS), block_tokens=BLOCK_TOKENS) if shared else None
    world = TorchWorld(pool=pool, sampling=Sampling(mode="greedy"), memory=Memory(prefixes=size))
    items = items_of(pool, prompt, count)
    for session, _ in items:
        world.open(session)
    results = world.verify(len(pool.members) - 1, items)
    return results.duration_s, sum(new for _, new, _, _ in results.forwards), world.manager.held_bytes


def row(
    pool: ModelPool, prompt: tuple[int, ...], count: int, *, shared: bool, one_s: float, seconds: float
) -> list[Cell]:
    _, fed, held = prefill(pool, prompt, count, shared=shared)
    return [
        cell("requests", count),
        cell("prefix cache", "on" if shared else "off"),
        cell("tokens fed", fed),
        cell("milliseconds", seconds * 1e3, digits=2),
        cell("times one", seconds / one_s, digits=2),
        cell("KiB held", held / 1024, digits=0),
    ]


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    for name, default in (("--tokens", 256), ("--rollouts", 16), ("--runs", 15)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool = load_pool(None)
    prompt = tuple(7 + (31 * at) % 1000 for at in range(options.tokens))
    kinds = [(1, False), (1, True), (options.rollouts, False), (options.rollouts, True)]
    taken: dict[tuple[int, bool], list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.runs):
        for count, shared in kinds:
            taken[count, shared].append(prefill(pool, prompt, count, shared=shared)[0])
    seconds = {kind: median(runs) for kind, runs in taken.items()}
    rows = [
        row(pool, prompt, count, shared=shared, one_s=seconds[1, False], seconds=seconds[count, shared])
        for count, shared in kinds
    ]
    title = f"prefill of {options.tokens} tokens by the target of {pool.name}, medians of {options.runs}"
    print(title, markdown_table(table(title, rows).grid()), sep="\n\n")


if __name__ == "__main__":
    main()
