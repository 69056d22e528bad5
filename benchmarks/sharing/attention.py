"""The saving of attention over a prefix shared by all rows: milliseconds of one forward of pico's target.

Rows read the prefix from slots of their own, without a prefix cache; from shared blocks, row by row; and from these
once for all rows. The last line is the choice of `auto` on this machine.

python benchmarks/sharing/attention.py [--repeats 9]
"""

import argparse
import time
from collections.abc import Iterator
from statistics import median

import torch
from paceline.decoding.prefix_cache import Hit, PrefixCacheSize
from paceline.reports.tables import console_of_output, print_tables
from paceline.runtime.caches import MemberKV, SlotCache
from paceline.runtime.forward import ModelForward
from paceline.runtime.forward_kinds import SharedKind
from paceline.runtime.prefixed_kv import PrefixedSlotCache
from paceline.studies.decode import load_pool
from paceline_laboratory.findings import Cell, table, table_cell

ROWS, LENGTHS, NEW_TOKENS = (4, 16, 64), (64, 256), (1, 5)
BLOCK = 16


def slots(forward: ModelForward, names: list[str], length: int) -> SlotCache:
    """A cache of rows that each hold the prefix."""
    cache = SlotCache(forward.kv_shape)
    for name in names:
        forward(torch.zeros(length, dtype=torch.long), cache.place([name], [length]), cache, slice(-1, None))
    return cache


def blocks(forward: ModelForward, names: list[str], length: int, kind: SharedKind) -> PrefixedSlotCache:
    """A cache of rows that share the blocks of a prefix."""
    cache = PrefixedSlotCache(forward.kv_shape, PrefixCacheSize(num_blocks=length // BLOCK, block_tokens=BLOCK))
    cache.shared_attention = kind
    # Zeros cost as much as real keys and values.
    hit = Hit(blocks=tuple(range(length // BLOCK)), branch=None, num_tokens=length)
    cache.attach([(name, hit) for name in names])
    return cache


def milliseconds(forward: ModelForward, cache: MemberKV, names: list[str], count: int) -> float:
    """Milliseconds of a forward of `count` new tokens of each row."""
    length = cache.length(names[0])
    ids = torch.zeros(len(names) * count, dtype=torch.long)
    start_s = time.perf_counter()
    forward(ids, cache.place(names, [count] * len(names)), cache, slice(None))
    taken_s = time.perf_counter() - start_s
    for name in names:
        cache.roll_back(name, length)
    return 1e3 * taken_s


@torch.inference_mode()
def rows(forward: ModelForward, repeats: int) -> Iterator[list[Cell]]:
    for num_rows in ROWS:
        names = [str(row) for row in range(num_rows)]
        for length in LENGTHS:
            caches: dict[str, MemberKV] = {
                "own slots": slots(forward, names, length),
                "blocks, row by row": blocks(forward, names, length, "off"),
                "blocks, once": blocks(forward, names, length, "on"),
                "auto": blocks(forward, names, length, "auto"),
            }
            for count in NEW_TOKENS:
                taken: dict[str, list[float]] = {name: [] for name in caches}
                for _ in range(repeats + 1):  # interleaved; the first allocates, and lets `auto` choose
                    for name, cache in caches.items():
                        taken[name].append(milliseconds(forward, cache, names, count))
                found = {name: median(each[1:]) for name, each in taken.items()}
                yield [
                    table_cell("rows", num_rows),
                    table_cell("prefix", length),
                    table_cell("new tokens each", count),
                    *(table_cell(name, value, digits=1) for name, value in found.items()),
                ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="forwards of each kind")
    options = parser.parse_args()
    pool = load_pool(None, threads=1)
    forward = pool.forward(len(pool.members) - 1, "fused", share_weights=True)
    title = "milliseconds of a forward of pico's target, all rows behind one prefix"
    print_tables(console_of_output(), [table(title, list(rows(forward, options.repeats))).grid()])


if __name__ == "__main__":
    main()
