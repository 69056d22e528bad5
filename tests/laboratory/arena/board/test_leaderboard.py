"""The leaderboard's page, figure and JSON."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from paceline_laboratory.arena.board import (
    BoardRuns,
    check_page,
    leaderboard,
    leaderboard_page,
    ranking,
    write_leaderboard,
)
from paceline_laboratory.arena.cells import Side
from paceline_laboratory.arena.store import BEST_STATIC

from .made_runs import CELLS, POLICIES, SEEDS, SPLIT, run_of, runs

pytest.importorskip("matplotlib")


def made(played, **missing):
    return leaderboard(BoardRuns(played), SPLIT, missing)


def everyone(early=1.0):
    """Runs of all policies, the best static chain's and an oracle's."""
    return [
        run_of(cell, policy, seed, 100.0 + 10 * place, early=early, lossy=policy == "greedy")
        for place, policy in enumerate((BEST_STATIC, *POLICIES, "oracle-window"))
        for cell in CELLS
        for seed in SEEDS
    ]


@given(runs())
def test_each_side_has_its_own_cells_and_every_policy_stands_on_the_page(played):
    board = made(played, elsewhere="not here")
    for side in (Side.report, Side.tune):
        assert {cell.recording for cell in board.cells[side]} == set(SPLIT.recordings(side))
        for score in board.scores[side].values():
            assert set(score.ratios) <= set(board.cells[side])
    assert {check.cell.recording for check in board.checks} <= set(SPLIT.report)
    assert sorted((*board.lossless, *board.lossy)) == sorted({run.policy for run in played} - {BEST_STATIC})
    page = leaderboard_page(board, "figures/leaderboard.svg")
    assert all(policy in page for policy in board.policies)
    assert "recording `elsewhere` is left out: not here" in page
    json.dumps(board.to_json())


def test_tables_of_the_page_are_whole():
    page = leaderboard_page(made(everyone()), "figures/leaderboard.svg")
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == [
        "Ranking",
        "Lossy policies",
        "Learning",
        "Where each one loses",
        "What SpecRouter is held to",
        "Regret",
    ]
    for block in re.findall(r"(?:^\|.*\|\n)+", page, re.MULTILINE):
        assert len({line.count(" | ") for line in block.splitlines()}) == 1


def test_what_failed_and_what_was_modelled_stand_on_the_page():
    played = [
        replace(run, exact_share=0.625) if (run.policy, run.cell, run.seed) == ("two-level", CELLS[4], 1) else run
        for run in everyone()
    ]
    board = leaderboard(BoardRuns(played), SPLIT, {}, gaps=("failed: mine in a cell",))
    assert "- failed: mine in a cell" in leaderboard_page(board, "figures/leaderboard.svg").splitlines()
    assert board.to_json()["gaps"] == ["failed: mine in a cell"]
    grid = ranking(board).grid()
    place = [column.heading for column in grid.columns].index("replayed")
    least = {row[0]: row[place] for row in grid.rows}
    assert least == {
        "specrouter": "100.0%",
        "two-level": "62.5%",
        "plain": "100.0%",
    }


def test_three_files_are_written_and_the_same_runs_write_the_same(tmp_path):
    page = tmp_path / "board.md"
    check_page(page)
    write_leaderboard(made(everyone()), page)
    names = ["board.md", "figures/board.json", "figures/board.svg"]
    first = [(tmp_path / name).read_bytes() for name in names]
    write_leaderboard(made(everyone()), page)
    assert [(tmp_path / name).read_bytes() for name in names] == first
    found = json.loads(first[1])
    assert [one["policy"] for one in found["policies"]] == ["greedy", "plain", "two-level", "specrouter"]
    assert found["policies"][0]["lossy"]
    assert found["policies"][3]["report"]["mean"] == pytest.approx(1.1)
    assert found["regret"]["oracle-window"]["report"]["specrouter"] == pytest.approx(150 / 110 - 1)


def test_without_a_cell_to_report_tables_tell_of_the_others():
    home = [cell for cell in CELLS if cell.recording == "home"]
    board = made([run for run in everyone() if run.cell in home])
    assert board.side is Side.tune
    assert board.checks == ()
    shown = ranking(board)
    assert "side tune" in shown.title
    assert shown.numbers("over plain: mean") == pytest.approx((1, 12 / 13, 11 / 13))


def test_a_page_elsewhere_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.md"):
        check_page(tmp_path / "board.html")
    with pytest.raises(ValueError, match="folder that exists"):
        check_page(tmp_path / "nowhere" / "board.md")
    (tmp_path / "figures").touch()
    with pytest.raises(ValueError, match="beside which figures is a folder or nothing"):
        check_page(tmp_path / "board.md")
