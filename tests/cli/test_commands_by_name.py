"""Commands are found by name, and none waits for the modules of another."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import paceline.policies
import paceline.reports
import paceline.traces
import paceline.traces.importers
import paceline.traces.workloads
import pytest
from paceline.base.errors import LABORATORY, install_hint
from paceline.cli import app
from paceline.cli.app import CommandByName, command

from .command_line import done, refused

TRACE = Path(paceline.traces.__file__).parents[1] / "recordings" / "pico.trace"
PACKAGES = (paceline.policies, paceline.reports, paceline.traces, paceline.traces.importers, paceline.traces.workloads)
HEAVY = {"numpy", "pydantic", "pyarrow", "simpy", "torch"}


def loaded_by(*args):
    """Every module that is there at the end of a command of its own process."""
    code = (
        "import atexit, sys; from paceline.__main__ import main; "
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); main()"
    )
    ran = subprocess.run([sys.executable, "-c", code, *args], check=True, capture_output=True, text=True)
    return set(ran.stderr.split())


def by_name():
    found = command()
    yield from found.commands.items()
    for group in found.commands.values():
        yield from getattr(group, "commands", {}).items()


@pytest.mark.parametrize("asked", ["--help", "--version"])
def test_what_runs_no_command_imports_none(asked):
    loaded = loaded_by(asked)
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("paceline.cli.")} == {"paceline.cli.app", "paceline.cli.errors"}


def test_a_command_imports_what_it_needs():
    loaded = loaded_by("trace", "inspect", str(TRACE))
    assert "paceline.cli.recordings" in loaded
    assert "paceline.cli.compare" not in loaded
    others = ("paceline.sim", "paceline.policies", "paceline_laboratory", "paceline.studies.")
    assert {name for name in loaded if name.startswith(others)} <= {"paceline.studies.options"}
    assert not {"simpy", "torch"} & loaded


def test_lists_say_of_a_command_what_it_says_of_itself():
    named = [(name, each) for name, each in by_name() if isinstance(each, CommandByName)]
    assert len(named) > 20
    for name, each in named:
        made = each.make()
        assert made.name == name
        assert each.get_short_help_str(200) == made.get_short_help_str(200) != ""


def test_a_command_that_is_misspelt_is_told_of_those_there_are():
    assert refused("comare") == "No such command 'comare'. Did you mean 'compare'?"
    assert refused("trace", "inspct").startswith("No such command 'inspct'. Did you mean 'inspect'")
    assert "list" in refused("experiment", "lst")


@pytest.mark.parametrize(
    "words", [["arena"], ["arena-models", "--help"], ["experiment", "list"], ["pool", "train", "x"]]
)
def test_commands_of_the_laboratory_say_what_to_install_where_it_is_missing(monkeypatch, words):
    monkeypatch.setattr(app, "entry_points", lambda **_: ())
    assert "  arena  " in done("--help")
    name = " ".join(words[:2]) if words[0] == "pool" else words[0]
    assert refused(*words).startswith(f"`paceline {name}` needs paceline-laboratory, in paceline's checkout: ")
    assert refused(*words).partition(": ")[2] == install_hint(LABORATORY)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.__name__)
def test_the_names_of_a_package_are_those_of_its_stub(package):
    nodes = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text()).body
    stub = {
        alias.asname: "." * node.level + (node.module or "")
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stub == package.MODULES
    assert package.__all__ == list(package.MODULES)
    for name, module in package.MODULES.items():
        assert getattr(package, name) is vars(importlib.import_module(module, package.__name__))[name]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
