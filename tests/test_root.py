"""The root of the package: its functions and their types are the same names, and importing it costs nothing."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import paceline
import pytest

STUB = Path(paceline.__file__).with_suffix(".pyi")


def stub_imports():
    """By name, the module that `__init__.pyi` takes it from."""
    nodes = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: node.module for node in nodes for alias in node.names}


def test_the_stub_names_the_same_functions_from_the_same_modules():
    assert stub_imports() == paceline.MODULES
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
