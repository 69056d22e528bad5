"""The machine at hand: what it is called, and where what is measured on it is kept."""

import os
import platform
from pathlib import Path

FOLDER_VARIABLE = "PACELINE_CACHE"


def processor() -> str:
    """The processor's name as the system gives it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def num_processors() -> int:
    """Processors that this process may run on, >= 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kept_folder() -> Path:
    """Where measurements of this machine are kept: $PACELINE_CACHE, else the user's folder for caches."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "paceline"
