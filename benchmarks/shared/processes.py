"""Commands in separate processes: their seconds and their most memory."""

import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

# Runs the command in its arguments and prints its seconds and most memory.
CHILD = """
import subprocess, sys, time
from resource import RUSAGE_CHILDREN
from paceline_laboratory.replays import peak_bytes
begun_s = time.perf_counter()
ran = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(time.perf_counter() - begun_s, peak_bytes(RUSAGE_CHILDREN))
sys.exit(ran.returncode)
"""


def paceline(*words: str) -> list[str]:
    return [sys.executable, "-m", "paceline", *words]


def run(command: list[str], folder: Path | None = None) -> tuple[float, float]:
    """(seconds, processor seconds) of a command and its child processes, in a folder."""
    before, begun_s = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    taken_s, after = time.perf_counter() - begun_s, getrusage(RUSAGE_CHILDREN)
    return taken_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_and_bytes(command: list[str]) -> tuple[float, int]:
    told = subprocess.run([sys.executable, "-c", CHILD, *command], capture_output=True, text=True, check=True).stdout
    taken, largest = told.split()
    return float(taken), int(largest)
