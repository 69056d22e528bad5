"""The example of the loop ends, and what it simulated of the served run is what the server did but for seconds."""

import os
import re
import socket
import subprocess
import sys
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from paceline.observing.server import Endpoint
from paceline.runs.observed import read_run
from paceline.traces.workloads import open_workload

ROOT = Path(__file__).parents[2]
TURNS = 4


def free_port():
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_the_loop_closes(tmp_path):
    port = free_port()
    command = Path(sys.executable).with_name("paceline")
    environment = {
        **os.environ,
        "PACELINE": str(command),
        "PORT": str(port),
        "RATE": "2",
        "REQUESTS": "8",
        "TOKENS": "24",
        "TURNS": str(TURNS),
    }
    folder = tmp_path / "loop"
    asked = ["sh", "examples/loop.sh", str(folder)]
    ran = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    for name in ("predicted", "measured"):
        gain = re.search(rf"^{name} +([0-9.]+)x", ran.stdout, re.MULTILINE)
        assert float(gain[1]) > 0.2
    (chosen,) = {path.name.rpartition("-")[0] for path in (folder / "chosen").iterdir()} - {"plain"}
    served = {}
    for name, policies in (("drafts", ("plain", "draft-4-target")), ("chosen", ("plain", chosen))):
        for policy, turn in product(policies, range(1, TURNS + 1)):
            run = read_run(folder / name / f"{policy}-{turn}")
            assert all(one.finished for one in run.requests)
            served.setdefault(turn, set()).add(sum(request.output_tokens for request in run.requests))
        arrivals = list(open_workload(folder / f"{name}.traffic" / "workload"))
        assert len(arrivals) == 2 * TURNS * (8 + 2)  # with what was sent to warm up
    assert [len(counts) for counts in served.values()] == [1] * TURNS  # the same prompts, and every chain is lossless
    with pytest.raises(ValueError, match="cannot be reached"):
        Endpoint(f"http://127.0.0.1:{port}", api_key=None, timeout_s=5).page("/health")
