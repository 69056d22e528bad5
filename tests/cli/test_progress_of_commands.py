"""Every command that may take long says how far it is, on standard error and nowhere else."""

import json
from functools import partial

import pytest
from paceline.base import terminal as progress
from paceline.runtime import timing as measure

from ..traces.importers.foreign_files import answer
from .command_line import paceline
from .untrained_pool import write_untrained_pool


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


@pytest.fixture
def pool(tmp_path):
    write_untrained_pool(tmp_path)
    return tmp_path


def lines(*args):
    """What was told; the command must have gone well, and its output must be JSON."""
    ran = paceline(*args)
    assert ran.code == 0, ran
    json.loads(ran.out or "{}")
    assert ran.err == ""
    return ran.told


def few(pool):
    return ("--prompts", pool / "prompts.jsonl", "--pool", pool, "--max-new-tokens", 8)


def test_compare(trace):
    told = lines("compare", "--trace", trace, "--policy", "draft:20/target", "--seeds", 9, "--json", "-")
    assert "paceline: replaying: 0 of 2 policies, draft:20/target, " in told
    assert ", seed " in told


def test_import(tmp_path):
    (tmp_path / "eagle.jsonl").write_text("".join(json.dumps(answer(row, [3, 1, 2])) + "\n" for row in range(500)))
    told = lines("trace", "import", "spec-bench", "eagle.jsonl", "--out", "a.trace", "--window", "sps=4", "--json", "-")
    assert " requests, " in told
    assert "paceline: importing: " in told


def test_record(pool, monkeypatch):
    monkeypatch.setattr(
        "paceline.studies.record.measure_costs", partial(measure.measure_costs, new_tokens=(1, 2), repeats=3)
    )
    ran = paceline("record", "a.trace", *few(pool), "--limit", 2)
    assert ran.code == 0
    assert "paceline: measuring seconds (costs=False or --no-costs leaves them out): " in ran.told
    assert " of 4 rounds, 0 s, about 0 s left\n" in ran.told
    assert "paceline: recording: 1 of 2 requests, " in ran.told
    assert ran.out.startswith("a.trace: 2 requests, ")
    assert "measuring" not in paceline("record", "b.trace", *few(pool), "--limit", 1, "--no-costs").told


def test_run(pool):
    told = lines("run", *few(pool), "--json", "-")
    assert "paceline: decoding: " in told
    assert f"paceline: loading {pool}: " in told


def test_agree(pool):
    told = lines("agree", *few(pool), "--policy", "draft:2/target", "--policy", "plain", "--json", "-")
    assert "paceline: recording: " in told
    assert "paceline: comparing: 1 of 2 policies, plain, " in told


def test_an_experiment():
    assert "paceline: experiment acceptance-by-level: " in lines(
        "experiment", "acceptance-by-level", "--limit", 2, "--json", "-"
    )


@pytest.mark.slow
def test_training(tmp_path):
    told = paceline("pool", "train", "tiny", "--tiny").told
    assert "paceline: training target: " in told
    assert "loss " in told
    assert "paceline: writing: " in told


@pytest.mark.slow
def test_search(pool):
    told = lines("pool", "search-slim", pool, "--trials", 3, "--random-trials", 3, "--max-new-tokens", 8, "--json", "-")
    assert "paceline: trying masks: " in told
    assert "paceline: timing forwards: " in told
