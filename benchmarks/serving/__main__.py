"""Simulated output tokens per second of serving on one core, metrics included: whole published workloads.

python benchmarks/serving [--data ../shared/data] [--runs 3] [--requests 1000000] [--dynamo PYTHON]

Every run is a separate process, all jobs in turn. `--dynamo` is the interpreter of an environment with Dynamo's replay,
a compiled simulator to compare with:
pip install --no-deps ai-dynamo ai-dynamo-runtime typing_extensions pydantic
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from jobs import JOBS, served, served_plainly, workload_of
from paceline.reports.tables import console_of_output, print_tables
from paceline_laboratory.findings import Cell, table, table_cell
from paceline_laboratory.replays import in_turns, peak_bytes

PLAIN, DYNAMO = "azure, plain reference", "azure, Dynamo"
# Run by Dynamo's interpreter: seconds of the replay alone, without startup and reading the file's text.
DYNAMO_CODE = """
import json, sys, time
from dynamo.replay import run_trace_replay
started = time.process_time()
run_trace_replay(sys.argv[1], num_workers=4, trace_block_size=512)
print(json.dumps({"seconds": time.process_time() - started}))
"""


def run_one(name: str, data: Path, requests: int) -> None:
    """Run a job here and print its results."""
    ready_s = time.process_time()  # since the process started
    if name in JOBS:
        tokens, seconds = served(JOBS[name], data, requests)
    else:
        tokens, seconds = served_plainly(data)
    print(json.dumps({"tokens": tokens, "seconds": seconds, "ready": ready_s, "peak": peak_bytes()}))


def in_child(command: list[str]) -> dict[str, float]:
    """The last line that a separate process prints, from JSON."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "TQDM_DISABLE": "1"})
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def for_dynamo(data: Path, folder: Path) -> Path:
    """The Azure workload in Dynamo's format; no two requests share a block."""
    path, first = folder / "azure.jsonl", 0
    with path.open("w", encoding="utf-8") as file:
        for arrival in workload_of(JOBS["azure"], data, 0):
            blocks = -(-arrival.prompt_tokens // 512)
            row = {
                "timestamp": arrival.arrives_ps / 10**9,
                "input_length": arrival.prompt_tokens,
                "output_length": arrival.output_tokens,
                "hash_ids": list(range(first, first + blocks)),
            }
            first += blocks
            file.write(json.dumps(row) + "\n")
    return path


def row_of(name: str, taken: dict[str, list[dict[str, float]]]) -> list[Cell]:
    """The row of a job, with medians."""
    runs = taken[name]
    found = {key: median(run[key] for run in runs) for key in runs[0]}
    goal = JOBS[name].goal if name in JOBS else None
    return [
        table_cell("workload, path", name),
        table_cell("output tokens", int(found["tokens"])),
        table_cell("seconds", found["seconds"], digits=2),
        table_cell("million tokens", runs[0]["tokens"] / found["seconds"] / 1e6, "1/s", digits=2),
        table_cell("goal", None if goal is None else goal / 1e6, "1/s", digits=1),
        table_cell("start-up", found.get("ready"), "s", digits=2),
        table_cell("peak", found["peak"] / 1e6 if "peak" in found else None, "MB", digits=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--dynamo", type=Path)
    parser.add_argument("--only", choices=[*JOBS, PLAIN], help="run one job here, once, and print JSON")
    asked = parser.parse_args()
    if asked.only:
        run_one(asked.only, asked.data, asked.requests)
        return
    own = [sys.executable, __file__, "--data", str(asked.data), "--requests", str(asked.requests), "--only"]
    with tempfile.TemporaryDirectory() as folder:
        commands = {name: [*own, name] for name in (*JOBS, PLAIN)}
        if asked.dynamo is not None:
            commands[DYNAMO] = [str(asked.dynamo), "-c", DYNAMO_CODE, str(for_dynamo(asked.data, Path(folder)))]
        taken = in_turns({name: lambda c=command: in_child(c) for name, command in commands.items()}, runs=asked.runs)
    for run in taken.get(DYNAMO, ()):
        run["tokens"] = taken["azure"][0]["tokens"]
    remark = "" if asked.dynamo is not None else "Dynamo was not run: --dynamo PYTHON"
    title = "Serving, seconds of processor time, metrics included"
    print_tables(console_of_output(), [table(title, [row_of(name, taken) for name in taken]).grid(remark)])


if __name__ == "__main__":
    main()
