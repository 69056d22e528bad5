"""`paceline experiment`: the frame with a small experiment of its own, and every experiment on few requests."""

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from paceline.base.errors import install_hint
from paceline.reports.figure import write_figure
from paceline_laboratory.experiments import catalogue
from paceline_laboratory.experiments.catalogue import Experiment, experiments
from paceline_laboratory.findings import ExperimentSetting, Finding, Head, Rows, markdown_table, table, table_cell

from ...cli.command_line import done, paceline, refused
from ...reports.test_panels import panels

REPLAYED = ("acceptance-by-level", "larger-targets")


def finding(setting: ExperimentSetting) -> Finding:
    """Numbers that say what the setting was."""
    counted = (("a_b|c", 1234, 5.25), ("seed", setting.seed, None))
    rows = [
        [table_cell("who", who), table_cell("count", count), table_cell("seconds", taken, "ms", 1)]
        for who, count, taken in counted
    ]
    tables = (table("of | all", rows),)
    return Finding(question="What was asked?", tables=tables, panels=panels(), answer=f"At most {setting.limit}.")


def broken(setting: ExperimentSetting) -> Finding:
    raise ValueError(f"nothing can be\nmeasured at seed {setting.seed}")


@pytest.fixture
def known(monkeypatch):
    """A catalogue of three: one that works, one that fails, one that works with a recording only."""
    entries = {
        "works": Experiment(summary="Works.", run=finding, uses=frozenset(("pool", "trace", "seed", "threads"))),
        "fails": Experiment(summary="Fails.", run=broken, uses=frozenset(("trace", "seed"))),
        "replays": Experiment(summary="Replays.", run=finding, uses=frozenset(("trace", "seed"))),
    }
    # First the one that takes the other's name: imported between the two it would keep the patch for good.
    for module in ("paceline_laboratory.commands", "paceline_laboratory.experiments.catalogue"):
        monkeypatch.setattr(f"{module}.experiments", lambda: entries)
    return entries


def test_one_experiment_prints_its_question_tables_and_answer(known):
    text = done("experiment", "works", "--limit", "7", "--seed", "3")
    assert text.startswith("What was asked?\n")
    assert text.endswith("At most 7.\n")
    for part in ("of | all", "seconds (ms)", "1,234", "5.2", "a_b|c"):
        assert part in text


def test_one_experiment_as_json_with_a_figure(known, tmp_path):
    data = json.loads(done("experiment", "works", "--json", "-", "--figure", "works.svg"))
    assert data["tables"][0]["rows"] == [["a_b|c", 1234, 5.25], ["seed", 0, None]]
    assert data["panels"][1]["categories"] == ["left", "right"]
    assert set(data) == {"question", "tables", "panels", "answer"}
    assert (tmp_path / "works.svg").read_text().startswith("<?xml")


def test_all_are_kept_but_the_one_that_fails(known, tmp_path):
    ran = paceline("experiment", "all", "--page", "page.md", "--figures", "pictures/all", "--json", "all.json")
    assert ran.code == 1
    lines = ran.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["works", "fails", "replays", "paceline"]
    assert lines[1].startswith("fails: failed: nothing can be measured at seed 0 (")
    assert lines[-1] == "paceline: 1 of 3 experiments failed: fails"
    page = (tmp_path / "page.md").read_text()
    assert "![works: lines; bars; points](pictures/all/works.svg)" in page
    assert "| a\\_b\\|c | 1,234 | 5.2 |" in page
    assert "Failed when this page was made: ValueError: nothing can be measured at seed 0\n" in page
    assert "paceline experiment replays" in page
    assert sorted(path.name for path in (tmp_path / "pictures/all").iterdir()) == ["replays.svg", "works.svg"]
    told = json.loads((tmp_path / "all.json").read_text())
    assert told["fails"] == {"error": "ValueError: nothing can be\nmeasured at seed 0"}
    paceline("experiment", "all", "--page", "page.md", "--figures", "pictures/all")
    assert (tmp_path / "page.md").read_text() == page


def test_markdown_keeps_its_columns():
    lines = markdown_table(finding(ExperimentSetting(seed=1)).tables[0].grid())
    assert lines.splitlines() == [
        "**of \\| all**",
        "",
        "| who | count | seconds (ms) |",
        "| --- | ---: | ---: |",
        "| a\\_b\\|c | 1,234 | 5.2 |",
        "| seed | 1 |  |",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("sideways",), "No such command 'sideways'."),
        (("works", "--figure", "works.pdf"), "--figure must end in .svg or .png, got 'works.pdf'"),
        (("works", "--figure", "nowhere/works.svg"), "nowhere/works.svg: no folder nowhere"),
        (("works", "--limit", "0"), "Invalid value for '--limit': Input should be greater than or equal to 1"),
        (("works", "--json", "nowhere/works.json"), "nowhere/works.json: no folder nowhere"),
        (("works", "--figure", "a.svg", "--json", "./a.svg"), "--json must be a file of its own, got 'a.svg'"),
        (("all", "--figures", "f", "--page", "p", "--json", "p"), "--json must be a file of its own, got 'p'"),
        (("replays", "--pool", "p"), "--pool has no part in replays, got p"),
        (("replays", "--threads", "2"), "--threads has no part in replays, got 2"),
        (("fails",), "nothing can be measured at seed 0"),
        (("all", "--page", "nowhere/page.md", "--figures", "f"), "nowhere/page.md: no folder nowhere"),
        (("all", "--figures", "f"), "Missing option '--page'."),
    ],
)
def test_bad_input(known, args, said):
    assert refused("experiment", *args) == said


def test_figures_need_their_extra(known, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = f": {install_hint('figures')}"
    assert refused("experiment", "works", "--figure", "works.svg").endswith(said)
    assert done("experiment", "works").startswith("What was asked?")


def test_the_extra_exists():
    root = Path(catalogue.__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(need.startswith("matplotlib") for need in extras["figures"])


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Rows(title="t", columns=(Head(name="c"),), rows=((1.5,),)), "column 'c' must have digits, got 1.5"),
        (lambda: Rows(title="t", columns=(), rows=((1,),)), "table 't': a row must have 0 cells, got (1,)"),
        (lambda: ExperimentSetting(threads=0), "threads must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(made, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        made()


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_uses_what_it_says(name):
    """Options that have no part in it are refused, so that none is accepted and ignored."""
    experiment = experiments()[name]
    module = importlib.import_module(f"paceline_laboratory.experiments.{name.replace('-', '_')}")
    source = Path(module.__file__).read_text()
    assert module.__doc__.startswith(f"{experiment.summary}\n")
    assert experiment.summary.endswith((".", "?"))
    assert len(experiment.summary) <= 120
    assert experiment.uses
    assert ("scenario_of" in source or "setting.trace" in source) == ("trace" in experiment.uses)
    assert any(word in source for word in ("pool_of", "models_of", "setting.pool")) == ("pool" in experiment.uses)


def test_an_experiment_does_not_wait_for_the_others():
    code = "import sys, paceline_laboratory.commands as group; group.experiment_commands(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "paceline_laboratory.experiments.catalogue" in loaded
    modules = {f"paceline_laboratory.experiments.{name.replace('-', '_')}" for name in experiments()}
    assert not modules & set(loaded)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_experiment_answers_the_same_again(name, tmp_path):
    found = [experiments()[name].run(ExperimentSetting(limit=1)) for _ in range(2)]
    assert found[0] == found[1]
    write_figure(found[0].panels, tmp_path / "figure.svg")


@pytest.mark.slow  # they time, train or search for over 10 seconds
@pytest.mark.parametrize("name", [name for name in experiments() if name not in REPLAYED])
def test_an_experiment_runs_on_few_prompts(name, tmp_path):
    ran = paceline("experiment", name, "--limit", "2", "--figure", "figure.svg")
    assert ran.code == 0, ran.err
    assert (tmp_path / "figure.svg").stat().st_size > 1000
