"""`paceline workload`: what it prints, its JSON, and what it refuses."""

import pytest

from ...traces.workloads.files import AZURE, write
from ..command_line import refused


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("poisson:rate=0,requests=3",), "rate of poisson must be in [1e-9, 1e9], got 0.0"),
        (("constant:requests=3", "--rate", "0"), "--rate must be in [1e-9, 1e9], got 0.0"),
        (("missing.csv",), "missing.csv: file: must be a readable file, got 'No such file or directory'"),
        (
            ("constant:rate=1,requests=3", "--horizon-seconds", "-1"),
            "--horizon-seconds must be in [1e-9, 1e9], got -1.0",
        ),
        (
            ("constant:rate=1,requests=3,prompt=1,output=1", "--lengths-from", "x"),
            "--lengths-from must be left out: no len",
        ),
    ],
)
def test_what_is_refused(args, told):
    assert refused("workload", *args).startswith(told)


def test_zero_tokens_are_told_with_the_option(tmp_path):
    line = refused("workload", write(tmp_path, AZURE.replace(",10\n", ",0\n")))
    assert "line 2: GeneratedTokens: must be >= 1 (with --zero-tokens such requests are dropped" in line
