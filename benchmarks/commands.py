"""Seconds and memory of commands from a cold process: help, the main job, imports, and large recordings.

The imports read the 480 published questions of specbench_yukiki in the folder that PACELINE_DATA names, and are left
out without them. The positions file is synthetic: two drafters, geometric rounds of at most 8 drafted tokens.

Large recordings are synthetic, of 1,024 tokens a request: peak memory and seconds by their number of requests.

python benchmarks/commands.py [--runs 7] [--requests 100000] [--positions 200] [--sizes 250,500,1000,2000]
    [--only start-up|imports|recordings]
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from paceline.base.files import shipped
from paceline_laboratory.findings import Cell, table_cell
from paceline_laboratory.replays import RUNS, in_turns
from shared.large_recordings import write_recording
from shared.processes import paceline, run, seconds_and_bytes
from shared.report import parser_of, show

WINDOW = 8
TOKENS = 1024  # per request of a large recording
# Opens the recording of its argument and reads a hundred requests here and there.
ANYWHERE = """
import random, sys
from pathlib import Path
from paceline.traces import read_trace
requests = read_trace(Path(sys.argv[1])).requests
for _ in range(100):
    requests[random.randrange(len(requests))].trie
"""


def start_ups(folder: Path) -> dict[str, list[str]]:
    """The timed commands; a synthetic recording of 60 requests replaces the shipped one if that is missing."""
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "paceline --version": paceline("--version"),
        "paceline --help": paceline("--help"),
        "paceline compare --help": paceline("compare", "--help"),
    }
    try:
        shipped("recordings", "pico.trace")
        found["paceline compare"] = paceline("compare")
        found["paceline compare --trace smollm2"] = paceline("compare", "--trace", "smollm2")
    except FileNotFoundError:
        trace = str(folder / "made.trace")
        models = ["--models", "draft,mid,target", "--acceptance", "0.7,0.85"]
        run(paceline("trace", "make", trace, "--requests", "60", "--tokens", "64", *models))
        found["paceline compare --trace SYNTHETIC"] = paceline("compare", "--trace", trace)
    return found


def show_start_ups(folder: Path, runs: int) -> None:
    found = start_ups(folder)
    timings = in_turns({name: partial(run, command) for name, command in found.items()}, runs=runs, warm_ups=1)

    def row(name: str) -> list[Cell]:
        megabytes = seconds_and_bytes(found[name])[1] / 1e6
        taken_s, processor_s = (median(column) for column in zip(*timings[name], strict=True))
        return [
            table_cell("command", name),
            table_cell("seconds", taken_s, digits=2),
            table_cell("of processors", processor_s, digits=2),
            table_cell("peak MB", megabytes, digits=0),
        ]

    show(f"medians of {runs} processes", map(row, found))


def write_positions(path: Path, requests: int, length: int) -> None:
    """Write one request per line; drafts agree by tokens with rate 0.8 or 0.6."""
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
            table_cell("what", name),
            table_cell("files MB", size / 1e6, digits=1),
            table_cell("seconds", taken, digits=2),
            table_cell("peak MB", largest / 1e6, digits=0),
        ]

    show("one import each, the process included", map(row, jobs))


def reading(path: str) -> dict[str, list[str]]:
    """The commands on a large recording; `compare` runs the target alone, too.

    The name of the recording gives its number of requests.
    """
    policies = ("plain", "draft:4/target", "draft:3/mid:6/target")
    served = ["--workload", f"poisson:rate=3,requests={Path(path).stem}", "--cluster", "h100", "--trace", path]
    return {
        **{f"compare {name}": paceline("compare", "--policy", name, "--trace", path) for name in policies},
        "compare plain, batch 32": paceline("compare", "--policy", "plain", "--batch", "32", "--trace", path),
        **{
            f"simulate {name}": paceline("simulate", "--policy", name, *served)
            for name in ("draft:4/target", "adaptive")
        },
        "trace inspect": paceline("trace", "inspect", path),
        "100 requests at random": [sys.executable, "-c", ANYWHERE, path],
    }


def show_recordings(folder: Path, sizes: Sequence[int]) -> None:
    paths = {size: folder / f"{size}.trace" for size in sizes}
    for size, path in paths.items():
        write_recording(size, TOKENS, path)
    written = sum(file.stat().st_size for file in paths[sizes[-1]].iterdir()) / 1e6

    def row(name: str, size: int) -> list[Cell]:
        taken, largest = seconds_and_bytes(reading(str(paths[size]))[name])
        return [
            table_cell("what", name),
            table_cell("requests", size),
            table_cell("seconds", taken, digits=1),
            table_cell("peak MB", largest / 1e6, digits=0),
        ]

    rows = [row(name, size) for name in reading("") for size in sizes]
    title = f"three models, {TOKENS} tokens a request; {sizes[-1]} requests take {written:,.0f} MB on the disk"
    show(title, rows, lines=range(len(sizes) - 1, len(rows) - 1, len(sizes)))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--positions", type=int, default=200)
    parser.add_argument("--sizes", default="250,500,1000,2000", help="requests of large recordings")
    parser.add_argument("--only", choices=("start-up", "imports", "recordings"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "start-up"):
            show_start_ups(Path(folder), options.runs)
        if options.only in (None, "imports"):
            show_imports(Path(folder), options.requests, options.positions)
        if options.only in (None, "recordings"):
            show_recordings(Path(folder), [int(size) for size in options.sizes.split(",")])


if __name__ == "__main__":
    main()
