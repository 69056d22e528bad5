"""How many calls of ours lie between `main` and what a command is about: each is one more place to read."""

import sys
from pathlib import Path
from unittest.mock import patch

import paceline
import pytest
from paceline.cli.app import command
from paceline.cli.errors import run_command

ROOT = Path(paceline.__file__).parent
PROMPTS = ROOT / "pools" / "pico" / "prompts.jsonl"
SERVED = ["--workload", "poisson:rate=4,requests=3", "--cluster", "h100"]
ANSWERED = ["--prompts", str(PROMPTS), "--limit", "1", "--max-new-tokens", "2", "--forward", "modules"]


def calls_to(function, folder, arguments):
    """Functions of ours on the stack, from `main` on, when one of this name in this folder is first called."""
    found = []
    of_folder, rest = f"{ROOT}/{folder}/", f"{ROOT}/.venv"

    def watch(frame, event, _):
        if event != "call" or frame.f_code.co_name != function or not frame.f_code.co_filename.startswith(of_folder):
            return
        sys.setprofile(None)
        while frame is not None:
            place = frame.f_code.co_filename
            if place.startswith(f"{ROOT}/") and not place.startswith((rest, f"{ROOT}/tests")):
                found.append(f"{Path(place).relative_to(ROOT)}:{frame.f_code.co_name}")
            frame = frame.f_back

    with patch.object(sys, "argv", ["paceline", *arguments]):
        sys.setprofile(watch)
        try:
            code = run_command(command())
        finally:
            sys.setprofile(None)
    assert code == 0
    return ["__main__.py:main", *found[::-1]]


# They are to be 10, 12 and 12, the forward itself among the last.
@pytest.mark.parametrize(
    ("function", "folder", "most", "arguments"),
    [
        ("judged", "sim", 13, ["compare", "--policy", "adaptive"]),  # the trie's answer
        ("verify", "sim", 17, ["simulate", *SERVED, "--policy", "adaptive"]),  # the step of the target
        ("feed", "runtime", 11, ["run", *ANSWERED, "--policy", "draft:2/target"]),  # who calls the forward
    ],
)
def test_few_calls_lie_between_main_and_what_a_command_is_about(function, folder, most, arguments, capsys):
    found = calls_to(function, folder, arguments)
    assert 5 < len(found) <= most, found
