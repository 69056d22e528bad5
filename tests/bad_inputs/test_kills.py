"""Commands that write, ended at any moment: what is there is whole, and what was asked to end leaves nothing behind."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paceline.profiles.profile import read_profile
from paceline.traces import open_recording

from .case import refresh
from .world import snapshot

MODELS = ("--prompts", "prompts.jsonl", "--pool", "pool", "--max-new-tokens", "4")
PROFILED = ("--prompts", "prompts.jsonl", "--pool", "pool", "--most-drift", "10")
# Calls, what they write, and how often each is ended in each way.
WRITING: dict[str, tuple[tuple[str, ...], str, int]] = {
    "json": (("compare", "--trace", "small.trace", "--seeds", "2", "--json", "out.json"), "out.json", 6),
    "log": (("compare", "--trace", "small.trace", "--policy", "plain", "--log", "logged"), "logged", 4),
    "make": (("trace", "make", "new.trace", "--requests", "200", "--tokens", "200"), "new.trace", 6),
    "import": (("trace", "import", "positions", "logs/pos.jsonl", "--out", "new.trace"), "new.trace", 4),
    "record": (("record", "new.trace", *MODELS, "--reach", "2", "--run", "1", "--no-costs"), "new.trace", 4),
    "run": (("run", *MODELS, "--out", "ran"), "ran", 4),
    "profile": (("profile", *PROFILED, "--out", "new.profile", "--repeats", "3"), "new.profile", 3),
}
MOST_S = {"record": 6.0, "run": 6.0, "profile": 12.0}  # later than most have ended; the others have after two seconds
ENDED = {0, 130, -signal.SIGTERM, -signal.SIGINT}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("name", WRITING)
def test_nothing_half_written(world, work, name, number):
    args, written, times = WRITING[name]
    rng = random.Random(f"{name} {number}")
    for _ in range(times):
        before = _fresh(world, work)
        code, err = _ended_after(args, rng.uniform(0.05, MOST_S.get(name, 2.0)), number)
        assert "Traceback" not in err
        new = {path for path in snapshot(work) if path not in before}
        assert {path: content for path, content in snapshot(work).items() if path in before} == before
        _assert_whole(work / written)
        if number is signal.SIGKILL:  # nobody can clear away after that; nothing wears the name of what was asked for
            continue
        assert code in ENDED, (code, err)
        left = {path for path in new if path.partition("/")[0] not in (written, _kept(work, written))}
        assert left == set(), (code, err)


def _fresh(world: Path, work: Path) -> dict[str, object]:
    refresh(world, work)
    return snapshot(work)


def _ended_after(args: tuple[str, ...], seconds: float, number: signal.Signals) -> tuple[int, str]:
    process = subprocess.Popen(
        (sys.executable, "-m", "paceline", *args), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def _kept(work: Path, written: str) -> str:
    """What an interrupted recording goes on from, if a request of it is finished."""
    part = work / f"{written}.part"
    return part.name if any(part.glob("*.npz")) else ""


def _assert_whole(path: Path) -> None:
    """What is there can be read to its end."""
    if path.suffix == ".json" and path.exists():
        assert json.loads(path.read_text())["policies"]
    elif path.suffix == ".profile" and path.exists():
        assert read_profile(path).shapes
    elif path.suffix == ".trace" and path.exists():
        assert open_recording(path).requests
    elif path.exists():
        assert {file.name for file in path.rglob("*.parquet")} >= {"ops.parquet", "steps.parquet", "requests.parquet"}
        assert all(json.loads(file.read_text()) for file in path.rglob("meta.json"))
