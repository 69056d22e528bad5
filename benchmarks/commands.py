"""Seconds and memory of commands from a cold process: help, the main job, and imports of recordings.

Of imports, the 480 published questions are those of specbench_yukiki in the folder that PACELINE_DATA names, left out
where there are none. The positions file is synthetic: two drafters, geometric rounds of at most 8 drafted tokens.

python benchmarks/commands.py [--runs 7] [--requests 100000] [--positions 200] [--only start-up|imports]
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from paceline.laboratory.findings.table import Cell, cell
from paceline.laboratory.timing import RUNS, interleaved
from paceline.shipped import shipped
from shared.report import parser_of, show

WINDOW = 8
# Runs the command of its arguments and prints its seconds and the largest memory it took.
CHILD = """
import subprocess, sys, time
from resource import RUSAGE_CHILDREN
from paceline.laboratory.timing import peak_bytes
begun_s = time.perf_counter()
ran = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(time.perf_counter() - begun_s, peak_bytes(RUSAGE_CHILDREN))
sys.exit(ran.returncode)
"""


def paceline(*words: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *words]


def run(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def seconds_and_bytes(command: list[str]) -> tuple[float, int]:
    told = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True).stdout
    taken, largest = told.split()
    return float(taken), int(largest)


def start_ups(folder: Path) -> dict[str, list[str]]:
    """What is timed; without the shipped recording a synthetic one of 60 requests takes its place."""
    found = {"python -c pass": [sys.executable, "-c", "pass"], "paceline compare --help": paceline("compare", "--help")}
    try:
        shipped("recordings", "pico.trace")
        found["paceline compare"] = paceline("compare")
    except FileNotFoundError:
        trace = str(folder / "made.trace")
        models = ["--models", "draft,mid,target", "--acceptance", "0.7,0.85"]
        run(paceline("trace", "make", trace, "--requests", "60", "--tokens", "64", *models))
        found["paceline compare --trace SYNTHETIC"] = paceline("compare", "--trace", trace)
    return found


def show_start_ups(folder: Path, runs: int) -> None:
    found = start_ups(folder)
    timings = interleaved({name: partial(run, command) for name, command in found.items()}, runs=runs)

    def row(name: str) -> list[Cell]:
        megabytes = seconds_and_bytes(found[name])[1] / 1e6
        seconds = timings[name].wall_s
        return [cell("command", name), cell("seconds", seconds, digits=2), cell("peak MB", megabytes, digits=0)]

    show(f"medians of {runs} processes", map(row, found))


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


def show_imports(folder: Path, requests: int, length: int) -> None:
    made = folder / "positions.jsonl"
    write_positions(made, requests, length)
    jobs = {f"positions, {requests:,} requests of {length}": ["positions", str(made)]}
    questions = sorted((Path(os.environ.get("PACELINE_DATA", "")) / "specbench_yukiki").glob("*.jsonl.gz"))
    if questions:
        jobs = {"spec-bench, 480 questions, three methods": ["spec-bench", *map(str, questions)], **jobs}

    def row(name: str) -> list[Cell]:
        words = jobs[name]
        taken, largest = seconds_and_bytes(paceline("trace", "import", *words, "--out", str(folder / f"{name}.trace")))
        size = sum(Path(file).stat().st_size for file in words[1:])
        return [
            cell("what", name),
            cell("files MB", size / 1e6, digits=1),
            cell("seconds", taken, digits=2),
            cell("peak MB", largest / 1e6, digits=0),
        ]

    show("one import each, the process included", map(row, jobs))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--positions", type=int, default=200)
    parser.add_argument("--only", choices=("start-up", "imports"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.only != "imports":
            show_start_ups(Path(folder), options.runs)
        if options.only != "start-up":
            show_imports(Path(folder), options.requests, options.positions)


if __name__ == "__main__":
    main()
