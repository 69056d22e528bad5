"""Seconds and memory of the command line from a cold process: its help, and the main job.

python benchmarks/startup.py [--runs 7]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import RUNS, interleaved
from paceline.shipped import shipped
from rich.console import Console
from rich.table import Table

# Runs the command of its arguments and prints the largest memory it took.
CHILD = """
import resource, subprocess, sys
ran = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(ran.returncode)
"""


def paceline(*words: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *words]


def run(command: list[str]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


def peak_bytes(command: list[str]) -> int:
    told = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True).stdout
    return int(told) * (1 if sys.platform == "darwin" else 1024)


def commands(folder: Path) -> dict[str, list[str]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    table = Table("command", "seconds", "peak MB", title=f"medians of {options.runs} processes", title_justify="left")
    with tempfile.TemporaryDirectory() as folder:
        found = commands(Path(folder))
        jobs = {name: (lambda command=command: run(command)) for name, command in found.items()}
        timings = interleaved(jobs, runs=options.runs)
        for name, command in found.items():
            table.add_row(name, f"{timings[name].wall_s:.2f}", f"{peak_bytes(command) / 1e6:,.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
