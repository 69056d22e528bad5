"""The root of the package, how deep calls lie below main, and what tests stand on."""

import importlib
import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import FOLDER_VARIABLE
from paceline.cli.app import command
from paceline.cli.errors import run_command

from . import conftest
from .pairs import pairs
from .stub import STUB, written


def test_the_stub_says_what_the_modules_declare():
    assert STUB.read_text(encoding="utf-8") == written(), "python -m tests.stub --write"
    assert paceline.__all__ == list(paceline.MODULES)


def said(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_all_of_it_is_what_can_be_imported_without_torch():
    code = "import sys; sys.modules['torch'] = None; from paceline import *; print(compare, 'decode' in globals())"
    told = said(code)
    assert told.startswith("<function compare at")
    assert told.endswith(" False\n")


def test_importing_the_root_imports_nothing_of_others_and_comparing_no_torch():
    code = "import paceline, sys; print({'numpy', 'pyarrow', 'rich', 'torch', 'typer'} & set(sys.modules))"
    assert said(f"{code}; paceline.compare; paceline.sweep; print('torch' in sys.modules)") == "set()\nFalse\n"


def test_every_name_is_what_its_module_holds():
    for name, module in paceline.MODULES.items():
        assert getattr(paceline, name) is getattr(importlib.import_module(f"paceline.{module}"), name)
        assert name in dir(paceline)


def test_without_a_cache_of_pytest_choices_go_to_a_folder_of_the_session(monkeypatch):
    """With `-p no:cacheprovider` a configuration has none."""
    monkeypatch.delenv(FOLDER_VARIABLE)
    ends = []
    conftest.pytest_configure(SimpleNamespace(add_cleanup=ends.append))
    folder = Path(os.environ[FOLDER_VARIABLE])
    assert folder.is_dir()
    for end in ends:
        end()
    assert not folder.exists()


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


@given(st.lists(st.integers(1, 4), min_size=3, max_size=5))
def test_any_two_values_meet(sizes):
    rows = pairs(*[[(place, value) for value in range(size)] for place, size in enumerate(sizes)])
    assert all([place for place, _ in row] == list(range(len(sizes))) for row in rows)
    met = {pair for row in rows for pair in combinations(row, 2)}
    for first, second in combinations(range(len(sizes)), 2):
        assert met >= set(product([(first, value) for value in range(sizes[first])],
                                  [(second, value) for value in range(sizes[second])]))  # fmt: skip
    assert len(rows) == len(set(rows))


def test_rows_are_few():
    assert len(pairs("ab", "cd", "ef")) == 4
    assert len(pairs("abc", "def", "ghi", "jkl")) <= 11
