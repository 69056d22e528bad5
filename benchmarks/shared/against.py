"""Replay of this checkout beside that of another, each by its own benchmarks/replay.py, in turns."""

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from paceline.benchmarks.shared.report import show
from paceline_laboratory.findings import table_cell

RATE = "tokens/CPU s"  # the column that is compared
RUNS = 3  # of every case in a turn, after one warm-up


def show_against(other: Path, *, requests: int, tokens: int, turns: int) -> None:
    """Print medians over `turns` of both checkouts, and this one's rate over the other's."""
    checkouts = (other.resolve(), Path(__file__).resolve().parents[2])
    rates: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for _ in range(turns):
        for index, checkout in enumerate(checkouts):
            for case, rate in _measured(checkout, requests, tokens).items():
                rates[case][index].append(rate)
    medians = {case: (median(theirs), median(ours)) for case, (theirs, ours) in rates.items() if theirs and ours}
    show(
        f"{requests} requests of {tokens} tokens; medians of {turns} turns",
        [
            [
                table_cell("case", case),
                table_cell(f"other {RATE}", theirs, digits=0),
                table_cell(RATE, ours, digits=0),
                table_cell("times", ours / theirs, digits=2),
            ]
            for case, (theirs, ours) in medians.items()
        ],
    )


def _measured(checkout: Path, requests: int, tokens: int) -> dict[str, float]:
    """Tokens per CPU second by case, from the table that the checkout's own benchmark prints."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "paceline").symlink_to(checkout)
        command = [sys.executable, checkout / "benchmarks" / "replay.py", "--runs", str(RUNS)]
        command += ["--requests", str(requests), "--tokens", str(tokens)]
        environment = {**os.environ, "PYTHONPATH": folder, "COLUMNS": "160"}
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    rows = [
        [text.strip() for text in line.replace("┃", "│").split("│")[1:-1]]
        for line in printed.splitlines()
        if line.startswith(("│", "┃"))
    ]
    column = rows[0].index(RATE)
    return {" ".join(row[:3]): float(row[column].replace(",", "")) for row in rows[1:]}
