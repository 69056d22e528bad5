"""Runs tests in a forked child in which some modules have other sources; no file is edited.

The parent has imported the large libraries once, and nothing of the package.
"""

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from .hook import sitecustomize
from .places import ROOT

LARGE = ("hypothesis", "numpy", "pyarrow", "pydantic", "rich", "simpy", "torch", "transformers", "typer")
MOST_BYTES = 24 << 30  # of addresses: a mutant that grows without end ends itself


for library in LARGE:
    importlib.import_module(library)


class Run(NamedTuple):
    """What a child did: exit code (None: stopped), rows of test, phase, outcome and seconds; of mutant and test."""

    code: int | None
    reports: list[list]
    hits: list[list]
    cpu_s: float


class Noter:
    """A plugin that writes down every report as it comes, since the child may be stopped."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note(nodeid, "start", "", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report.nodeid, report.when, report.outcome, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid, "collect", "failed", 0.0)

    def _note(self, *row: object) -> None:
        self._file.write(json.dumps(row) + "\n")


def run(tests: list[str], sources: dict[str, str], *, cpu_s: float, first_only: bool) -> Run:
    """Runs tests with other sources by file, at most so many processor seconds (and ten times as long by the clock)."""
    folder = Path(tempfile.mkdtemp(prefix="mutant"))
    texts = {str(ROOT / file): text for file, text in sources.items()}
    (folder / "sources").write_text(json.dumps(texts), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        _be_child(folder, tests, first_only=first_only)
    deadline = time.monotonic() + 10 * cpu_s
    # The clock of that process: with RLIMIT_CPU, process_time would go in steps of some ms for the tests as well.
    clock = (~child << 3) | 2
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.02)
        with suppress(OSError):
            if time.clock_gettime(clock) > cpu_s:
                break
    # The child, and what its tests started and left behind.
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended[0]:
        ended = os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(ended[1])
    rows = [
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        for path in (folder / "reports", folder / "hits")
    ]
    shutil.rmtree(folder, ignore_errors=True)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(code if code >= 0 else None, *rows, spent)


def _be_child(folder: Path, tests: list[str], *, first_only: bool) -> None:
    """Becomes pytest; never returns."""
    code = 99
    try:
        # No session of its own: it would be scheduled apart from `nice`.
        os.setpgid(0, 0)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        os.environ |= {
            sitecustomize.SOURCES: str(folder / "sources"),
            sitecustomize.HITS: str(folder / "hits"),
            "PYTHONPATH": str(Path(sitecustomize.__file__).parent),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
        }
        sitecustomize.install()
        sys.path[:] = [path for path in sys.path if path not in {"", str(ROOT)}]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        options = ["-q", "-m", "not slow", "--hypothesis-seed=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += [f"--basetemp={folder / 'made'}", "-o", f"cache_dir={folder / 'cache'}", *["-x"] * first_only]
        code = int(pytest.main([*options, *tests], plugins=[Noter(folder / "reports")]))
    finally:
        os._exit(code)
