"""Seconds and memory of an import from a cold process: 480 published questions, and a positions file of any length.

The questions are those of specbench_yukiki in the folder that PACELINE_DATA names, left out where there are
none. The positions file is synthetic: two drafters, geometric rounds of at most 8 drafted tokens.

python benchmarks/importing.py [--requests 100000] [--positions 200]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
WINDOW = 8
# Runs the command of its arguments and prints its seconds and the largest memory it took.
CHILD = """
import resource, subprocess, sys, time
begun = time.perf_counter()
ran = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(ran.returncode)
"""


def seconds_and_bytes(command: list[str]) -> tuple[float, int]:
    told = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True).stdout
    taken, largest = told.split()
    return float(taken), int(largest) * (1 if sys.platform == "darwin" else 1024)


def paceline(*words: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *words]


def questions() -> list[str]:
    folder = Path(os.environ.get("PACELINE_DATA", "")) / "specbench_yukiki"
    return [str(path) for path in sorted(folder.glob("*.jsonl.gz"))]


def write_positions(path: Path, requests: int, length: int) -> None:
    """A request a line; drafts agree token by token with rate 0.8 or 0.6."""
    rng = np.random.default_rng(0)
    room = np.arange(length, 0, -1)
    with path.open("w", encoding="utf-8") as file:
        for number in range(requests):
            drafters = {
                name: np.minimum(np.minimum(rng.geometric(1 - rate, length), WINDOW + 1), room).tolist()
                for name, rate in (("draft", 0.6), ("mid", 0.8))
            }
            file.write(json.dumps({"id": str(number), "tag": "made", "drafters": drafters}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--positions", type=int, default=200)
    options = parser.parse_args()
    table = Table("what", "files MB", "seconds", "peak MB", title="one import each, the process included")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "positions.jsonl"
        write_positions(made, options.requests, options.positions)
        jobs = {f"positions, {options.requests:,} requests of {options.positions}": ["positions", str(made)]}
        if found := questions():
            jobs = {"spec-bench, 480 questions, three methods": ["spec-bench", *found], **jobs}
        for number, (name, words) in enumerate(jobs.items()):
            command = paceline("trace", "import", *words, "--out", str(Path(folder) / f"{number}.trace"))
            taken, largest = seconds_and_bytes(command)
            size = sum(Path(file).stat().st_size for file in words[1:])
            table.add_row(name, f"{size / 1e6:,.1f}", f"{taken:.2f}", f"{largest / 1e6:,.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
