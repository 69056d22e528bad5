"""`paceline arena`."""

import json
from dataclasses import replace

import pytest
from paceline.policies.by_name import PolicySpec
from paceline_laboratory.arena import run as arena_run
from paceline_laboratory.arena.play import BEST_STATIC, play

from ..cli.command_line import paceline, refused, with_own
from .arena.test_run import MINE, OneChain

ONE = ("--cells", "pico/steep/batch-1", "--seeds", 1, "--jobs", 1)


@pytest.fixture(autouse=True)
def work(monkeypatch, tmp_path):
    """Folder of the results; chains are not searched for."""
    monkeypatch.setattr(arena_run, "CellStatics", OneChain)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arena"


def test_policies_are_ranked_and_results_are_kept(work):
    ran = paceline("arena", *ONE, "--policy", "two-level", "--policy", "draft:1/target")
    assert ran.code == 0
    rows = [line.split("│")[1].strip() for line in ran.out.splitlines() if line.startswith("│")]
    assert rows == ["two-level", "draft:1/target", "plain"]
    assert "4 runs, of which 0 were played before" in ran.told
    again = paceline("arena", *ONE, "--policy", "two-level", "--by-cell")
    assert "pico/steep/batch-1 │ draft:2/target" in again.out
    assert "3 runs, of which 3 were played before" in again.told
    assert len(list((work / "cells").rglob("*.json"))) == 4


def test_what_a_policy_lacks_is_told_by_name_and_counted(lacking):
    ran = paceline("arena", *ONE, "--policy", "two-level", "--policy", "plain")
    assert ran.code == 0
    assert "two-level is left out of 1 run: it needs what is not there" in ran.out


def test_json_has_every_run():
    ran = paceline("arena", *ONE, "--policy", "two-level", "--json", "-")
    data = json.loads(ran.out)
    assert {one["policy"] for one in data["played"]} == {BEST_STATIC, "plain", "two-level"}
    assert data["missing"] == {}
    assert data["failed"] == data["left_out"] == []


def test_an_oracle_that_was_played_is_told_of(monkeypatch):
    def quickly(stage, cell, policy, seed):
        """An oracle takes seconds to plan."""
        return replace(play(stage, cell, PolicySpec.parse("plain"), seed), policy=policy.label)

    monkeypatch.setattr(arena_run, "play", quickly)
    ran = paceline("arena", *ONE, "--policy", "oracle-window")
    assert "seconds more than an oracle" in ran.out
    assert "│ plain         │ +0.0%" in ran.out


def test_a_policy_in_a_file_joins_the_field_and_one_that_fails_ends_with_1(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    ran = paceline("arena", *ONE, "--policy", "plain", "--add-policy", f"{file}:Mine")
    assert ran.code == 1
    assert f"failed: {file}:Mine in pico/steep/batch-1, seed 0: policy {file}:Mine" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cells", "pico/*/batch-2"], "--cells must match one of the"),
        (["--cells", "pico/steep/Batch-1"], "the load of a cell must be one of batch-1"),
        (["--policy", "nope"], "unknown policy 'nope'"),
        (["--policy", "plain", "--add-policy", "plain"], "--policy must differ, got plain twice"),
        (["--split-file", "none.toml"], "none.toml: the split must be readable"),
        (["--split-file", "split.toml", "--split", "tune"], "--split must be a side with recordings, got tune"),
        *((["--policy", "plain", "--seeds", seeds], "'--seeds'") for seeds in (0, 1_001, 10**20)),
        (["--page", "board.txt"], "--page must end in .md"),
        (["--page", "board.md"], "--page needs cells to report"),
        (["--page", "board.md", "--json", "figures/board.json"], "--json must be a file of its own"),
    ],
)
def test_bad_input_is_told_in_one_line(tmp_path, args, says):
    (tmp_path / "split.toml").write_text('report = ["pico"]\n')
    (tmp_path / "figures").mkdir()
    assert says in refused("arena", *with_own(ONE, args))


def test_the_leaderboard_is_a_page_with_a_figure_and_json(tmp_path):
    page, split = tmp_path / "board.md", tmp_path / "split.toml"
    split.write_text('report = ["pico"]\n')
    ran = paceline("arena", *ONE, "--split-file", split, "--policy", "two-level", "--page", page)
    assert ran.code == 0, ran
    assert "two-level" in page.read_text()
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"board.svg", "board.json"}
