"""`paceline arena`."""

import json
from dataclasses import replace

import pytest
from paceline.policies.spec import PolicySpec
from paceline_laboratory.arena import run as player
from paceline_laboratory.arena.play import play
from paceline_laboratory.arena.store import BEST_STATIC

from .command_line import paceline, refused

ONE = ("--cells", "pico/steep/batch-1", "--seeds", 1, "--jobs", 1)


class OneChain:
    """In place of a search, which takes seconds."""

    def __init__(self, stage):
        self._stage = stage

    def best(self, cell, seed):
        chain = "draft:4/target"
        return replace(play(self._stage, cell, PolicySpec.parse(chain), seed), policy=BEST_STATIC, chain=chain)


@pytest.fixture(autouse=True)
def work(monkeypatch, tmp_path):
    """Folder of the results; chains are not searched for."""
    monkeypatch.setattr(player, "CellStatics", OneChain)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arena"


def test_policies_are_ranked_and_results_are_kept(work):
    ran = paceline("arena", *ONE, "--policy", "two-level", "--policy", "draft:1/target")
    assert ran.code == 0
    rows = [line.split("│")[1].strip() for line in ran.out.splitlines() if line.startswith("│")]
    assert rows == ["two-level", "draft:1/target", "plain"]
    assert "4 runs, of which 0 were played before" in ran.told
    again = paceline("arena", *ONE, "--policy", "two-level", "--by-cell")
    assert "pico/steep/batch-1 │ draft:4/target" in again.out
    assert "3 runs, of which 3 were played before" in again.told
    assert (work / "results" / "pico.jsonl").exists()


def test_what_a_policy_lacks_is_told_by_name_and_counted(monkeypatch):
    def lacks(stage, cell, spec, seed):
        if spec.name == "two-level":
            raise ValueError("it needs what is not there")
        return play(stage, cell, spec, seed)

    monkeypatch.setattr(player, "play", lacks)
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

    monkeypatch.setattr(player, "play", quickly)
    ran = paceline("arena", *ONE, "--policy", "oracle-window")
    assert "seconds more than an oracle" in ran.out
    assert "│ plain         │ +0.0%" in ran.out


def test_a_policy_in_a_file_joins_the_field_and_one_that_fails_ends_with_1(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    def __init__(self, pool):\n        pass\n"
        "    def decide(self, seen):\n        raise RuntimeError('no')\n    def learn(self, outcome):\n        pass\n"
    )
    ran = paceline("arena", *ONE, "--policy", "plain", "--add-policy", f"{file}:Mine")
    assert ran.code == 1
    assert f"failed: {file}:Mine in pico/steep/batch-1, seed 0: PolicyError:" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cells", "pico/*/batch-2"], "--cells must match one of the"),
        (["--cells", "pico/steeper/batch-1"], "the ladder of a cell must be one of flat"),
        (["--cells", "pico/steep/Batch-1"], "cell 'pico/steep/Batch-1': load must match"),
        (["--split", "report", "--cells", "pico/*"], "cells of split report, got 'pico/*'"),
        (["--policy", "nope"], "unknown policy 'nope'"),
        (["--policy", "plain", "--add-policy", "plain"], "--policy must differ, got plain twice"),
        (["--split-file", "none.toml"], "none.toml: the split must be readable"),
    ],
)
def test_bad_input_is_told_in_one_line(args, says):
    assert says in refused("arena", *args, *(() if "--cells" in args else ONE))


def test_a_split_without_a_recording_to_report_is_refused(tmp_path):
    file = tmp_path / "split.toml"
    file.write_text('tune = ["pico"]\nreport = []\n')
    assert "report must name one recording at least" in refused("arena", "--split-file", file)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("specrouter,every=0", "policy 'specrouter,every=0': every must be in [1, 1,000,000], got 0"),
        ("eagle:2/target", "chain 'eagle:2/target': unknown model 'eagle'"),
    ],
)
def test_a_policy_that_no_recording_can_be_played_with_is_refused(policy, says):
    ran = paceline("arena", *ONE, "--policy", policy)
    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.err.splitlines()[-1]  # recordings are made, and told of, before


@pytest.mark.parametrize("seeds", [0, 1_001, 10**20])
def test_seeds_out_of_range_are_refused_before_runs_are_listed(seeds):
    assert "'--seeds'" in refused("arena", *ONE, "--policy", "plain", "--seeds", seeds)


def test_a_side_without_recordings_is_refused(tmp_path):
    file = tmp_path / "split.toml"
    file.write_text('report = ["pico"]\n')
    assert "--split must be a side with recordings, got tune" in refused(
        "arena", "--split-file", file, "--split", "tune"
    )


def test_the_leaderboard_is_a_page_with_a_figure_and_json(tmp_path):
    page, split = tmp_path / "board.md", tmp_path / "split.toml"
    split.write_text('report = ["pico"]\n')
    ran = paceline("arena", *ONE, "--split-file", split, "--policy", "two-level", "--page", page)
    assert ran.code == 0, ran
    assert "two-level" in page.read_text()
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"board.svg", "board.json"}


def test_a_page_needs_cells_to_report(tmp_path):
    assert "--page must end in .md" in refused("arena", *ONE, "--page", tmp_path / "board.txt")
    figures = tmp_path / "figures" / "board.json"
    figures.parent.mkdir()
    twice = ("--page", tmp_path / "board.md", "--json", figures)
    assert "--json must be a file of its own" in refused("arena", *ONE, *twice)
    assert "--page needs cells to report" in refused("arena", *ONE, "--page", tmp_path / "board.md")
