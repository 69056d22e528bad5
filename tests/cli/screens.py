"""What `paceline compare` prints at several widths, kept in `golden/` beside this file.

`python tests/cli/screens.py`, or `make screens`, writes them anew; the difference is then read as any other.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
WIDTHS = (80, 100, 160)
MADE = "--requests 6 --tokens 48 --models draft,mid,slim,target --acceptance 0.6,0.8,0.9 --cost-ratios 0.05,0.3,0.7"
SCREENS = {
    "compare": "",
    "everything": "--policy draft:4/target --policy draft:3/mid:20/target --policy via-sd --detail --by-tag --batch 9",
    "sweep": "--sweep draft:1..4:3/target --sweep draft:3/mid:4..8:4/target --batch 1,2,4",
}


def paceline(*words: str, folder: Path, columns: int) -> str:
    """What the real command prints."""
    environment = {**os.environ, "COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "paceline", *words]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    if run.returncode or run.stderr:
        raise RuntimeError(f"{' '.join(words)}: {run.stderr}")
    return run.stdout


def screen(name: str, columns: int, folder: Path) -> str:
    """One screen; `folder` holds the recording once it was made."""
    if not (folder / "screen.trace").exists():
        paceline("trace", "make", "screen.trace", *MADE.split(), "--tags", "math,code", folder=folder, columns=columns)
    words = ("compare", "--trace", "screen.trace", *SCREENS[name].split())
    return paceline(*words, folder=folder, columns=columns)


def golden(name: str, columns: int) -> Path:
    """Where a screen is kept."""
    return GOLDEN / f"{name}-{columns}.txt"


def renew() -> None:
    """Write all of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SCREENS:
            for columns in WIDTHS:
                golden(name, columns).write_text(screen(name, columns, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    renew()
