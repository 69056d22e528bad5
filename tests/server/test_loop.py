"""The example of the loop ends, and what it simulated of the served run is what the server did but for seconds."""

import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from paceline.observing.server import Endpoint
from paceline.runs.observed import read_run
from paceline.traces.workloads import open_workload

ROOT = Path(__file__).parents[2]
NAMES = ("plain", "drafts", "again", "chosen")


@pytest.mark.slow
def test_the_loop_closes(tmp_path):
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
    predicted, measured = (
        re.search(rf"^{name} .* ([0-9.]+)x", ran.stdout, re.MULTILINE) for name in ("predicted", "measured")
    )
    assert float(predicted[1]) > 0.2
    assert float(measured[1]) > 0.2
    runs = {name: read_run(folder / f"{name}.run") for name in NAMES}
    assert all(one.finished for run in runs.values() for one in run.requests)
    served = [sum(request.output_tokens for request in run.requests) for run in runs.values()]
    assert served[0] == served[1] == served[3]  # the same prompts, and every chain is lossless
    for name, num_runs in (("plain", 1), ("drafts", 2), ("chosen", 1)):
        arrivals = list(open_workload(folder / f"{name}.traffic" / "workload"))
        assert len(arrivals) == num_runs * (12 + 2)  # with what was sent to warm up
    with pytest.raises(ValueError, match="cannot be reached"):
        Endpoint(f"http://127.0.0.1:{port}", api_key=None, timeout_s=5).page("/health")
