"""The root of the package: its functions and their types are the same names, and importing it costs nothing."""

import importlib
import subprocess
import sys

import paceline
import pytest

from .stub import STUB, written


def test_the_stub_says_what_the_modules_declare():
    assert STUB.read_text(encoding="utf-8") == written(), "python -m tests.stub --write"
    assert paceline.__all__ == list(paceline.MODULES)


def test_all_of_it_is_what_can_be_imported_without_torch():
    code = "import sys; sys.modules['torch'] = None; from paceline import *; print(compare, 'decode' in globals())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("<function compare at")
    assert run.stdout.endswith(" False\n")


@pytest.mark.parametrize("name", sorted(paceline.MODULES))
def test_every_name_is_what_its_module_holds(name):
    module = importlib.import_module(f"paceline.{paceline.MODULES[name]}")
    assert getattr(paceline, name) is getattr(module, name)
    assert name in dir(paceline)


def test_importing_the_root_imports_nothing_of_others():
    code = "import paceline, sys; print(sorted({'numpy', 'pyarrow', 'rich', 'torch', 'typer'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_comparing_needs_no_torch():
    code = "import paceline, sys; paceline.compare; paceline.sweep; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
