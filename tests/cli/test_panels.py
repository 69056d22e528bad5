"""Help: every command stands in one section, every option in one panel, whatever is added."""

import sys

import pytest
from paceline.__main__ import main
from paceline.cli.app import COMMANDS, EXPERIMENT, GROUPS
from paceline.cli.panels import HEADINGS, SECTIONS

from .command_line import done


def test_every_command_stands_in_one_section():
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted([*COMMANDS, *(name for name, _, _ in GROUPS), EXPERIMENT.words])
    told = done("--help")
    assert [line.rstrip(":") for line in told.splitlines() if line.rstrip(":") in SECTIONS] == list(SECTIONS)
    assert all(told.count(f"\n  {name} ") == 1 for name in listed)


@pytest.mark.parametrize("command", ["compare", "simulate", "recommend"])
def test_long_commands_have_panels(command):
    told = done(command, "--help")
    assert [line.rstrip(":") for line in told.splitlines() if line.rstrip(":") in HEADINGS] == list(HEADINGS)
    seconds, load = (told.split(f"\n{name}:")[1].split("\n\n")[0] for name in ("Seconds", "Load"))
    assert "--cost" in seconds
    assert "--workload" in load
    assert "--json" in told.split("\nOutput:")[1]


def test_short_commands_have_none():
    assert "\nOptions:\n" in done("settings", "--help")


@pytest.mark.parametrize(
    ("typed", "found"),
    [("paceline comp", "compare"), ("paceline policy sh", "show"), ("paceline compare --find", "--find-rate")],
)
def test_shells_complete(typed, found, monkeypatch, capsys):
    """As bash asks for it, after eval "$(_PACELINE_COMPLETE=source_bash paceline)"."""
    asked = {"_PACELINE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["paceline"])
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # not of `python -m pytest`
    with pytest.raises(SystemExit):
        main()
    assert found in capsys.readouterr().out.split()
