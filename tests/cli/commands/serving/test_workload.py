"""`paceline workload`: what it refuses, in words of its options; what it prints is in the golden book."""

import pytest

from ....traces.workloads.files import AGENTS, AZURE, write
from ...command_line import done, refused


def test_sessions_and_notes(tmp_path):
    printed = done("workload", write(tmp_path, AGENTS), "--rate", "2", "--limit", "2", "--seed", "5")
    assert "2; 1 of sessions, 5.0 requests each on average" in printed
    assert "sessions begin as a Poisson process, 2 sessions/s, seed 5" in printed
    assert "limited to the first 2 arrivals" in printed


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("constant:requests=3", "--rate", "0"), "--rate must be in [1e-9, 1e9], got 0.0"),
        (("missing.csv",), "missing.csv: file: must be a readable file, got 'No such file or directory'"),
        (("constant:rate=1,requests=3", "--horizon-seconds", "-1"), "--horizon-seconds must be in [1e-9, 1e9], got -1"),
        (
            ("constant:rate=1,requests=3,prompt=1,output=1", "--lengths-from", "x"),
            "--lengths-from must be left out: no",
        ),
    ],
)
def test_what_is_refused(args, told):
    assert refused("workload", *args).startswith(told)


def test_zero_tokens_are_told_with_the_option(tmp_path):
    line = refused("workload", write(tmp_path, AZURE.replace(",10\n", ",0\n")))
    assert "line 2: GeneratedTokens: must be >= 1 (with --zero-tokens such requests are dropped" in line
