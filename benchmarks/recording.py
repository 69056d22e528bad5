"""Seconds of recording prompts with the shipped pool, and what 60 would take.

python benchmarks/recording.py [PROMPTS] [--pool FOLDER] [--max-new-tokens 64] [--reach 16] [--run 8]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from measuring import peak_bytes
from paceline.runtime.prompts import read_prompts
from paceline.shipped import shipped
from paceline.traces import Closure, Sampling
from rich.console import Console
from rich.table import Table

from ..studies.runtime_door import runtime_module

WHOLE = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=int, nargs="?", default=4)
    parser.add_argument("--pool", type=Path, help="default: the shipped pool")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--reach", type=int, default=16)
    parser.add_argument("--run", type=int, default=8)
    options = parser.parse_args()
    try:
        recorder, pools = runtime_module("recording.recorder"), runtime_module("pools.pool")
        started_s = time.perf_counter()
        pool = pools.ModelPool.load(options.pool or shipped("pools", "pico"), threads=1)
    except (ModuleNotFoundError, FileNotFoundError, ValueError) as error:
        sys.exit(f"nothing was measured: {error}")
    loaded_s = time.perf_counter() - started_s
    every = read_prompts(shipped("pools", "pico") / "prompts.jsonl")
    chosen = every[:: max(1, len(every) // options.prompts)][: options.prompts]  # of every kind of text
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        trace = recorder.record(
            pool,
            chosen,
            sampling=Sampling(mode="greedy"),
            closure=Closure(kind="monotone", reach=options.reach, run=options.run),
            max_new_tokens=options.max_new_tokens,
            out=Path(out) / "bench.trace",
        )
    taken_s = time.perf_counter() - started_s
    tokens = sum(len(record.trie.trunk) - 1 for record in trace.requests)
    contexts = sum(record.trie.num_nodes for record in trace.requests)
    title = f"{len(chosen)} prompts, {options.max_new_tokens} new tokens, reach {options.reach}, run {options.run}"
    table = Table("what", "value", title=title, title_justify="left")
    table.add_row("threads", "1")
    table.add_row("load the pool", f"{loaded_s:.1f} s")
    table.add_row("record", f"{taken_s:.1f} s")
    table.add_row("a prompt", f"{taken_s / len(chosen):.2f} s")
    table.add_row("output tokens", f"{tokens:,}")
    table.add_row("contexts", f"{contexts:,}, {contexts / tokens:.1f} a token, {contexts / taken_s:,.0f} a second")
    table.add_row(f"{WHOLE} prompts would take", f"{taken_s / len(chosen) * WHOLE / 60:.1f} min")
    table.add_row("peak memory", f"{peak_bytes() / 1e6:,.0f} MB")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
