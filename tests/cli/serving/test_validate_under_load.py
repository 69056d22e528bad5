"""`paceline validate --workload`: what it refuses before a model is loaded."""

import pytest

from ..command_line import refused

SOUND = ("validate", "--trace", "a.trace", "--prompts", "p.jsonl")
SERVED = (*SOUND, "--workload", "poisson:requests=2", "--cluster", "h100")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SOUND, "--workload", "poisson:requests=2"), "--workload goes with --cluster FILE or --cluster DEVICE"),
        ((*SOUND, "--rate", "2"), "--rate goes with --workload"),
        ((*SOUND, "--cluster", "h100"), "--cluster goes with --workload"),
        ((*SERVED, "--batch", "4"), "--batch has no part in --workload, whose batches are the cluster's"),
        ((*SERVED, "--tag", "code"), "--tag has no part in --workload, whose batches are the cluster's"),
        ((*SERVED, "--rate", "two"), "--rate must hold numbers with commas between, got 'two'"),
        (
            ("validate", "--trace", "a.trace", "--workload", "poisson:requests=2", "--cluster", "h100"),
            "--workload goes with --prompts FILE, those of the recording",
        ),
    ],
    ids=lambda value: "",
)
def test_options_that_do_not_go_together(arguments, said):
    assert said in refused(*arguments)
