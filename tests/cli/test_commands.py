"""Commands are found by name, typed options become values, what was found is shown, and how far a command is."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import get_args

import paceline.policies
import paceline.reports
import paceline.traces
import paceline.traces.importers
import paceline.traces.workloads
import pytest
from paceline.base import terminal as progress
from paceline.base.errors import LABORATORY, install_hint
from paceline.base.options import opt
from paceline.cli import app
from paceline.cli.app import CommandByName, command
from paceline.cli.models import ForwardOption
from paceline.cli.output import show
from paceline.cli.typed import named_numbers, spelled_out
from paceline.reports.tables import Printed, table
from paceline.runtime.forward_kinds import KINDS
from paceline.runtime.profiling.costs import measure_costs

from ..traces.importers.foreign_files import answer
from . import command_line
from .command_line import done, refused
from .command_line import paceline as command_of

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
    own = {"paceline.cli.app", "paceline.cli.errors", "paceline.cli.panels"}
    assert {name for name in loaded if name.startswith("paceline.cli.")} == own


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


@pytest.mark.parametrize("words", [["arena"], ["experiment", "list"], ["pool", "train", "x"]])
def test_commands_of_the_laboratory_say_what_to_install_where_it_is_missing(monkeypatch, words):
    monkeypatch.setattr(app, "entry_points", lambda **_: ())
    monkeypatch.setattr(command_line, "command", app.command)  # as other tests may have made them
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


@dataclass(frozen=True, kw_only=True)
class Size:
    name: str = "no option"
    width: int = opt(3, "Of it.", least=1)
    factors: tuple[float, ...] = opt((0.5, 2.0), "Of each side.")
    scale: Mapping[str, float] | None = opt(None, "By name.", metavar="NAME=FACTOR")


def test_a_record_is_typed_field_by_field_and_reaches_the_command_as_one():
    told = []

    def command(*, first: str, size: Size, last: bool) -> None:
        told.append((first, size, last))

    made = spelled_out(command)
    found = signature(made).parameters
    assert list(found) == ["first", "width", "factors", "scale", "last"]
    assert [get_args(one.annotation)[:1] for one in found.values()] == [(), (int,), (str,), (list[str] | None,), ()]
    assert [found[name].default for name in ("width", "factors", "scale")] == [3, "0.5,2.0", None]
    made(first="a", last=True, width=1, factors="1,2", scale=["draft=2"])
    made(first="a", last=True, width=3, factors="0.5,2.0", scale=None)
    sizes = [Size(width=1, factors=(1.0, 2.0), scale={"draft": 2.0}), Size()]
    assert told == [("a", size, True) for size in sizes]


def test_a_number_for_each_name():
    assert named_numbers("--scale", "FACTOR", None) == {}
    told = ["draft=0.5", "mid=+2", "target=1e-3", "b=-.25"]
    found = named_numbers("--scale", "FACTOR", told)
    assert list(found.items()) == [("draft", 0.5), ("mid", 2.0), ("target", 1e-3), ("b", -0.25)]


NO_NUMBERS = ("", "draft", "draft=", "draft=x", "draft=1=2", "=1", "draft= 2", "draft=1_0", "draft=\u0663", "draft=0x1")


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        *(([text], f"must be NAME=FACTOR, got '{text}'") for text in NO_NUMBERS),
        *(([f"draft={one}"], f"of draft must be finite, got {one}") for one in ("nan", "inf", "-inf", "1e400")),
        (["draft=1", "draft=2"], "draft is given twice"),
    ],
)
def test_what_is_no_name_and_number(texts, told):
    with pytest.raises(ValueError, match=f"--scale {told}"):
        named_numbers("--scale", "FACTOR", texts)


def test_forward_names_every_kind_without_loading_torch():
    kinds, _ = get_args(ForwardOption)
    assert get_args(kinds) == KINDS


class Found(Printed):
    """Says of an argument, in a table and in JSON, and counts what it is asked for."""

    def __init__(self):
        self.asked = []
        self.meta = {"remarks": ["`decide_s` is 1"], "notes": ["`decide_s` is a field"]}

    def tables(self):
        self.asked.append("tables")
        return [table([{"a": "1"}], remarks=self.meta["remarks"])]

    def lines(self):
        self.asked.append("lines")
        return ["one line"]

    def to_json(self):
        self.asked.append("json")
        return {"meta": self.meta, "rows": [1]}

    def to_dicts(self):
        raise AssertionError("nobody asks for rows")


def test_only_one_form_of_what_was_found_is_made(tmp_path, capsys):
    found = Found()
    show(tmp_path / "out.json", found)
    assert found.asked == ["json"]
    said = json.loads((tmp_path / "out.json").read_text())
    assert said == {"meta": {"remarks": ["--decide-seconds is 1"], "notes": ["`decide_s` is a field"]}, "rows": [1]}
    assert found.meta["remarks"] == ["`decide_s` is 1"], "what is given is left as it is"
    show(None, found)
    assert found.asked == ["json", "tables", "lines"]
    out = capsys.readouterr().out
    assert "--decide-seconds is 1" in out
    assert out.endswith("one line\n")
    show(None, found, lambda: [table([{"b": "2"}])])
    assert found.asked[3:] == ["lines"], "other tables take the place of its own"
    assert "b" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def at_every_advance(monkeypatch):
    """As if ten seconds passed before each step of a stage: what a clock would tell depends on the machine."""
    enter, advance_to = progress.Progress.__enter__, progress.Progress.advance_to

    def enter_telling(stage):
        enter(stage)
        stage._write_line()
        return stage

    def advance_telling(stage, done, note=None):
        advance_to(stage, done, note)
        stage._write_line()

    monkeypatch.setattr(progress.Progress, "__enter__", enter_telling)
    monkeypatch.setattr(progress.Progress, "advance_to", advance_telling)


def lines(*args):
    """What was told; the command must have gone well, and its output must be JSON."""
    ran = command_of(*args)
    assert ran.code == 0, ran
    json.loads(ran.out or "{}")
    assert ran.err == ""
    return ran.told


def few(pool):
    return ("--prompts", pool / "prompts.jsonl", "--pool", pool, "--max-new-tokens", 8)


def test_compare(trace):
    told = lines("compare", "--trace", trace, "--policy", "suffix", "--orders", 3, "--json", "-")
    assert "paceline: replaying: 0 of 2 policies, suffix, " in told
    assert ", run " in told


def test_import(tmp_path):
    (tmp_path / "eagle.jsonl").write_text("".join(json.dumps(answer(row, [3, 1, 2])) + "\n" for row in range(500)))
    told = lines("trace", "import", "spec-bench", "eagle.jsonl", "--out", "a.trace", "--window", "sps=4", "--json", "-")
    assert " requests, " in told
    assert "paceline: importing: " in told


def test_record(untrained, monkeypatch):
    monkeypatch.setattr("paceline.studies.record.measure_costs", partial(measure_costs, new_tokens=(1, 2), repeats=3))
    ran = command_of("record", "a.trace", *few(untrained), "--limit", 2)
    assert ran.code == 0
    stage = "paceline: measuring seconds (--no-costs leaves them out)"
    assert f"{stage}, first rounds: 1 of 16 forwards, 0 s\n" in ran.told
    assert f"{stage}: 2 of 3 rounds, 0 s, about 0 s left\n" in ran.told
    assert ran.told.index("paceline: recording: 1 of 2 requests, ") < ran.told.index(stage)
    assert ": 3 rounds, drift " in ran.told.splitlines()[-1]
    assert ran.out.startswith("a.trace: 2 requests, ")
    assert "measuring" not in command_of("record", "b.trace", *few(untrained), "--limit", 1, "--no-costs").told


def test_run(untrained):
    told = lines("run", *few(untrained), "--json", "-")
    assert "paceline: decoding: " in told
    assert f"paceline: loading {untrained}: " in told


def test_agree(untrained):
    told = lines("agree", *few(untrained), "--policy", "draft:2/target", "--policy", "plain", "--json", "-")
    assert "paceline: recording: " in told
    assert "paceline: comparing: 1 of 2 policies, plain, " in told


def test_an_experiment():
    assert "paceline: experiment acceptance-by-level: " in lines(
        "experiment", "acceptance-by-level", "--limit", 2, "--json", "-"
    )


@pytest.mark.slow
def test_training(tmp_path):
    told = command_of("pool", "train", "tiny", "--tiny").told
    assert "paceline: training target: " in told
    assert "loss " in told
    assert "paceline: writing: " in told


@pytest.mark.slow
def test_search(untrained):
    tries = ("--out", "found.toml", "--trials", 3, "--random-trials", 3, "--max-new-tokens", 8)
    told = lines("pool", "search-slim", untrained, *tries, "--json", "-")
    assert "paceline: trying masks: " in told
    assert "paceline: timing forwards: " in told


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--cost", ""),
        ("pool", "check", ""),
        ("compare", "--workload", "", "--cluster", "h100"),
        ("simulate", "--workload", "", "--cluster", "h100", "--policy", "plain"),
    ],
)
def test_an_empty_name_is_not_the_current_folder(words):
    assert refused(*words).endswith("got ''")
