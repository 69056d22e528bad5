"""The example of the loop ends, and what it simulated of the served run is what the server did but for seconds."""

import os
import re
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from paceline.observing.server import Endpoint
from paceline.runs.observed import read_run
from paceline.traces.workloads import open_workload

ROOT = Path(__file__).parents[2]
NAMES = ("plain-1", "drafts-1", "judged", "drafts-2", "plain-2", "before-1", "chosen-1", "before-2", "chosen-2")
SEEDS = (1, 1, 2, 3, 3, 1, 1, 2, 2)


def free_port():
    """A port that is free, and so is the one above it."""
    while True:
        with closing(socket.socket()) as first, closing(socket.socket()) as second:
            first.bind(("127.0.0.1", 0))
            with suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", first.getsockname()[1] + 1))
                return first.getsockname()[1]


@pytest.mark.slow
def test_the_loop_closes(tmp_path):
    port = free_port()
    command = Path(sys.executable).with_name("paceline")
    environment = {
        **os.environ,
        "PACELINE": str(command),
        "PORT": str(port),
        "RATE": "2",
        "REQUESTS": "12",
        "TOKENS": "24",
    }
    folder = tmp_path / "loop"
    asked = ["sh", "examples/loop.sh", str(folder)]
    ran = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    for name in ("predicted", "measured, 1", "measured, 2"):
        gain = re.search(rf"^{name} .* ([0-9.]+)x", ran.stdout, re.MULTILINE)
        assert float(gain[1]) > 0.2
    runs = {name: read_run(folder / f"{name}.run") for name in NAMES}
    assert all(one.finished for run in runs.values() for one in run.requests)
    served = {}
    for seed, run in zip(SEEDS, runs.values(), strict=True):
        served.setdefault(seed, set()).add(sum(request.output_tokens for request in run.requests))
    assert [len(counts) for counts in served.values()] == [1, 1, 1]  # the same prompts, and every chain is lossless
    for name, num_runs in (("plain", 4), ("drafts", 3), ("chosen", 2)):
        arrivals = list(open_workload(folder / f"{name}.traffic" / "workload"))
        assert len(arrivals) == num_runs * (12 + 2)  # with what was sent to warm up
    with pytest.raises(ValueError, match="cannot be reached"):
        Endpoint(f"http://127.0.0.1:{port}", api_key=None, timeout_s=5).page("/health")
