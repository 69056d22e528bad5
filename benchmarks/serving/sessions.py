"""Seconds and memory of serving sessions with growing prompts, prefix cache on: each turn sends its conversation.

python benchmarks/serving/sessions.py [--sessions 1000 10000] [--turns 50]

Every run is a separate process. Each turn reads 64 new tokens and writes 64; the next comes a second later.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable

from jobs import PICO, Job, served_workload
from paceline.reports.tables import console_of_output, print_tables
from paceline.sim.serving.limits import KvLimits
from paceline.sim.serving.memory import MemberKv
from paceline.traces.workloads.opening import open_workload
from paceline_laboratory.findings import Cell, table, table_cell
from paceline_laboratory.replays import peak_bytes

SOURCE = "persistent-agent:turns={turns},prompt=64,output=64,wait=1,sessions={sessions},rate={rate}"
RATE = 0.5  # sessions per second and replica
JOBS = {
    "target, 1 replica": Job(source="", num_replicas=1, prefix_cache=True),
    "target, 64 replicas": Job(source="", num_replicas=64, prefix_cache=True, router="prefix-affinity"),
    "draft:4/target, 1 replica": Job(
        source="", num_replicas=1, prefix_cache=True, policy="draft:4/target", recording=PICO
    ),
    "draft:4/target, 64 replicas": Job(
        source="", num_replicas=64, prefix_cache=True, policy="draft:4/target", recording=PICO, router="prefix-affinity"
    ),
}


def run_one(name: str, sessions: int, turns: int) -> None:
    """Serve here and print the resources used."""
    job = JOBS[name]
    text = SOURCE.format(turns=turns, sessions=sessions, rate=RATE * job.num_replicas)
    _, seconds = served_workload(job, open_workload(text))
    print(json.dumps({"seconds": seconds, "peak": peak_bytes()}))


def microseconds_a_block(num_blocks: int, repeats: int) -> tuple[float, float]:
    """Microseconds per block of looking up a text, and of inserting one."""
    texts = [array("q", range(number << 20, (number << 20) + num_blocks)) for number in range(repeats)]
    kv = MemberKv(KvLimits(num_blocks=num_blocks * repeats))
    tokens = num_blocks * 16
    for owner in range(repeats):
        kv.open(owner, texts[owner], tokens)
        kv.reserve(owner, tokens)

    def insert(owner: int) -> None:
        kv.commit(owner, tokens, texts[owner])

    def look_up(owner: int) -> None:
        kv.hit_tokens(texts[owner], tokens + 1)

    put_s, found_s = _timed(insert, repeats), _timed(look_up, repeats)
    blocks = num_blocks * repeats
    return 1e6 * found_s / blocks, 1e6 * put_s / blocks


def _timed(do: Callable[[int], None], repeats: int) -> float:
    started_s = time.process_time()
    for number in range(repeats):
        do(number)
    return time.process_time() - started_s


def row_of(name: str, sessions: int, turns: int) -> list[Cell]:
    """The row of a job in a separate process."""
    command = [sys.executable, __file__, "--only", name, "--sessions", str(sessions), "--turns", str(turns)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
    found = json.loads(done.stdout.splitlines()[-1])
    return [
        table_cell("policy, replicas", name),
        table_cell("sessions", sessions),
        table_cell("requests", sessions * turns),
        table_cell("seconds", found["seconds"], digits=2),
        table_cell("requests", sessions * turns / found["seconds"], "1/s", digits=0),
        table_cell("peak", found["peak"] / 1e6, "MB", digits=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--only", choices=list(JOBS), help="run one job here, and print JSON")
    asked = parser.parse_args()
    if asked.only:
        run_one(asked.only, asked.sessions[0], asked.turns)
        return
    blocks = []
    for num_blocks in (8, 64, 512):
        found_us, put_us = microseconds_a_block(num_blocks, 8192 // num_blocks)
        blocks.append(
            [
                table_cell("blocks of a text", num_blocks),
                table_cell("look-up", found_us, "us", digits=3),
                table_cell("insert", put_us, "us", digits=3),
            ]
        )
    rows = [row_of(name, sessions, asked.turns) for sessions in asked.sessions for name in JOBS]
    title = f"Sessions of {asked.turns} turns, seconds of processor time, metrics included"
    print_tables(
        console_of_output(), [table("Prefix cache, microseconds a block", blocks).grid(), table(title, rows).grid()]
    )


if __name__ == "__main__":
    main()
