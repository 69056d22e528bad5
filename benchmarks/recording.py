"""Seconds of recording prompts with the shipped pool, and what 60 would take.

python benchmarks/recording.py [PROMPTS] [--pool FOLDER] [--max-new-tokens 64] [--reach 16] [--run 8]
"""

import tempfile
import time
from pathlib import Path

from paceline.base.files import shipped
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import read_prompts
from paceline.runtime.recording.recorder import record
from paceline.traces import Closure, Sampling
from paceline_laboratory.findings import table_cell
from paceline_laboratory.replays import peak_bytes
from shared.report import parser_of, show

WHOLE = 60


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("prompts", type=int, nargs="?", default=4)
    parser.add_argument("--pool", type=Path, help="default: the shipped pool")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--reach", type=int, default=16)
    parser.add_argument("--run", type=int, default=8)
    options = parser.parse_args()
    started_s = time.perf_counter()
    pool = ModelPool.load(options.pool or shipped("pools", "pico"), threads=1)
    loaded_s = time.perf_counter() - started_s
    every = read_prompts(shipped("pools", "pico") / "prompts.jsonl")
    chosen = every[:: max(1, len(every) // options.prompts)][: options.prompts]  # of every kind of text
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        trace = record(
            pool,
            chosen,
            sampling=Sampling(mode="greedy"),
            closure=Closure(kind="monotone", reach=options.reach, run=options.run),
            max_new_tokens=options.max_new_tokens,
            out=Path(out) / "bench.trace",
        )
    taken_s = time.perf_counter() - started_s
    tokens = sum(len(one.trie.trunk) - 1 for one in trace.requests)
    contexts = sum(one.trie.num_nodes for one in trace.requests)
    found = {
        "threads": "1",
        "load the pool": f"{loaded_s:.1f} s",
        "record": f"{taken_s:.1f} s",
        "a prompt": f"{taken_s / len(chosen):.2f} s",
        "output tokens": f"{tokens:,}",
        "contexts": f"{contexts:,}, {contexts / tokens:.1f} a token, {contexts / taken_s:,.0f} a second",
        f"{WHOLE} prompts would take": f"{taken_s / len(chosen) * WHOLE / 60:.1f} min",
        "peak memory": f"{peak_bytes() / 1e6:,.0f} MB",
    }
    title = f"{len(chosen)} prompts, {options.max_new_tokens} new tokens, reach {options.reach}, run {options.run}"
    show(title, [[table_cell("what", name), table_cell("value", value)] for name, value in found.items()])


if __name__ == "__main__":
    main()
