"""Commands that write, ended at any moment: what is there is whole, and what was asked to end leaves nothing behind."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paceline.runs.observed import read_observed
from paceline.runs.serving import read_serving
from paceline.traces import open_recording
from paceline.traces.profile import read_profile

from ..observing.fake_server import Server, Ways, served
from .world import refresh, snapshot

MODELS = ("--prompts", "prompts.jsonl", "--pool", "pool", "--max-new-tokens", "4")
# A small grid: the whole one takes longer than a test waits where a machine is busy.
GRID = ("--rows", "1,2", "--new-tokens", "1,4", "--context-tokens", "0,16")
PROFILED = ("--prompts", "prompts.jsonl", "--pool", "pool", "--most-drift", "10", *GRID)
RECORD = ("record", "new.trace", *MODELS, "--reach", "2", "--run", "1", "--no-costs")
LOAD = ("--workload", "poisson:rate=200,requests=300,prompt=8,output=8", "--tag", "")
SERVED = ("--cluster", "h100", "--trace", "small.trace", "--policy", "plain")
# In place of the search for the best static chain, which takes seconds, stands one chain.
BEGUN = """
import sys
from paceline.__main__ import main

print("begun", flush=True)  # before that Python itself would be interrupted
"""
ARENA = f"""{BEGUN}
from dataclasses import replace
from paceline_laboratory.arena.play import BEST_STATIC, play
from paceline_laboratory.arena import run
from paceline.policies.by_name import PolicySpec

class OneChain:
    def __init__(self, stage):
        self.stage = stage

    def best(self, cell, seed):
        found = play(self.stage, cell, PolicySpec.parse("draft:4/target"), seed)
        return replace(found, policy=BEST_STATIC, chain="draft:4/target")

run.CellStatics = OneChain
sys.exit(main())
"""
PLAYED = ("--seeds", "1", "--jobs", "1", "--policy", "plain", "--policy", "two-level", "--work", "arena")
PACELINE = ("-c", f"{BEGUN}sys.exit(main())")
# What is called, what it writes, and how often it is ended in each way.
WRITING: dict[str, tuple[tuple[str, ...], str, int]] = {
    "json": ((*PACELINE, "compare", "--trace", "small.trace", "--seeds", "2", "--json", "out.json"), "out.json", 6),
    "sweep": (
        (*PACELINE, "compare", "--trace", "small.trace", "--sweep", "draft:1..8/target", "--json", "out.json"),
        "out.json",
        10,
    ),
    "log": ((*PACELINE, "compare", "--trace", "small.trace", "--policy", "plain", "--log", "logged"), "logged", 4),
    "make": ((*PACELINE, "trace", "make", "new.trace", "--requests", "200", "--tokens", "200"), "new.trace", 8),
    "import": ((*PACELINE, "trace", "import", "positions", "logs/pos.jsonl", "--out", "new.trace"), "new.trace", 8),
    "record": ((*PACELINE, *RECORD), "new.trace", 4),
    "run": ((*PACELINE, "run", *MODELS, "--out", "ran"), "ran", 4),
    "profile": ((*PACELINE, "profile", *PROFILED, "--out", "new.profile", "--repeats", "3"), "new.profile", 3),
    "simulate": ((*PACELINE, "simulate", *LOAD, *SERVED, "--out", "served"), "served", 8),
    "observe": ((*PACELINE, "observe", "URL", "--prompts", "prompts.jsonl", *LOAD, "--out", "seen"), "seen", 8),
    "arena": (("-c", ARENA, "arena", "--cells", "pico/steep/batch-1", *PLAYED, "--json", "out.json"), "out.json", 4),
}
ENDED = {0, 1, 130, -signal.SIGTERM, -signal.SIGINT}
WAYS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


@pytest.fixture(scope="module")
def server():
    with served(Ways(step_s=0.002)) as seen:
        yield seen


@pytest.fixture(scope="module")
def whole_runs(world, tmp_path_factory, server):
    """By command: seconds that it takes here when nobody ends it, and all that it leaves."""
    found = {}

    def run(name):
        if name not in found:
            folder = tmp_path_factory.mktemp("whole")
            refresh(world, folder)
            began = time.monotonic()
            code, err = _ended_after(_called(name, server), None, signal.SIGKILL, folder)
            assert code == 0, err
            found[name] = time.monotonic() - began, snapshot(folder)
        return found[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("number", WAYS, ids=lambda number: number.name)
@pytest.mark.parametrize("name", WRITING)
def test_nothing_half_written(world, work, name, number, whole_runs, server):
    _, written, times = WRITING[name]
    takes_s, whole = whole_runs(name)
    rng = random.Random(f"{name} {number}")
    for _ in range(times):
        before = _fresh(world, work)
        code, err = _ended_after(_called(name, server), rng.uniform(0.02, 1.1 * takes_s), number, work)
        assert "Traceback" not in err
        new = {path for path in snapshot(work) if path not in before}
        assert {path: content for path, content in snapshot(work).items() if path in before} == before
        _assert_whole(work / written)
        if name in {"record", "arena"}:
            _assert_goes_on(work, name, whole, server)
        if number is signal.SIGKILL:  # nobody can clear away after that; nothing wears the name of what was asked for
            continue
        assert code in ENDED, (code, err)
        left = {path for path in new if path.partition("/")[0] not in (written, "arena", _kept(work, written))}
        assert left == set(), (code, err)


def _assert_goes_on(work: Path, name: str, whole: dict[str, object], server: Server) -> None:
    """The same call comes to what it comes to when nobody ends it: a recording byte by byte."""
    made = work / WRITING[name][1]
    if not made.exists():
        code, err = _ended_after(_called(name, server), None, signal.SIGKILL, work)
        assert code == 0, err
    if name == "arena":
        again, once = (re.sub(rb"(?<=_us\": )[0-9.]+", b"", text) for text in (made.read_bytes(), whole["out.json"]))
        assert again == once  # but for microseconds of this machine
        return
    found = {path: content for path, content in snapshot(work).items() if path.startswith("new.trace/")}
    assert found == {path: content for path, content in whole.items() if path.startswith("new.trace/")}


def _called(name: str, server: Server) -> tuple[str, ...]:
    return tuple(server.url if word == "URL" else word for word in WRITING[name][0])


def _fresh(world: Path, work: Path) -> dict[str, object]:
    refresh(world, work)
    return snapshot(work)


def _ended_after(args: tuple[str, ...], seconds: float | None, number: signal.Signals, folder: Path) -> tuple[int, str]:
    """(exit code, what was said) of a process that is ended after so long; None: it ends by itself."""
    process = subprocess.Popen(
        (sys.executable, *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    assert process.stdout.readline() == "begun\n"
    if seconds is not None:
        time.sleep(seconds)
        process.send_signal(number)
    try:
        _, err = process.communicate(timeout=600)
    finally:
        process.kill()  # after a timeout it would go on
    return process.returncode, err


def _kept(work: Path, written: str) -> str:
    """What an interrupted recording goes on from, if a request of it is finished."""
    part = work / f"{written}.part"
    return part.name if any(part.glob("*.npz")) else ""


def _assert_whole(path: Path) -> None:
    """What is there can be read to its end."""
    if path.suffix == ".json" and path.exists():
        found = json.loads(path.read_text())
        assert found.get("policies") or found.get("sweep")
    elif path.suffix == ".profile" and path.exists():
        assert read_profile(path).shapes
    elif path.suffix == ".trace" and path.exists():
        assert open_recording(path).requests
    elif path.name == "seen" and path.exists():
        assert read_observed(path).meta
    elif path.name == "served" and path.exists():
        assert read_serving(path)
    elif path.exists():
        assert {file.name for file in path.rglob("*.parquet")} >= {"ops.parquet", "steps.parquet", "requests.parquet"}
        assert all(json.loads(file.read_text()) for file in path.rglob("meta.json"))
