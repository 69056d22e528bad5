"""What the leaderboard says of a policy."""

from dataclasses import replace

import pytest
from hypothesis import given
from paceline_laboratory.arena.board import (
    EARLY,
    LIMITS,
    OTHERS,
    PLAIN,
    STATIC,
    BoardRuns,
    by_part,
    checks,
    loses_at,
    oracle_cells,
    ratios_after,
    ratios_beyond,
    regrets,
    scores,
    worst_cells,
)
from paceline_laboratory.arena.store import BEST_STATIC

from .made_runs import CELLS, POLICIES, SEEDS, run_of, runs


@given(runs())
def test_every_cell_is_won_and_no_lossy_policy_takes_it(played):
    board = BoardRuns(played)
    found = {score.policy: score for score in scores(board, CELLS)}
    assert set(found) == {run.policy for run in played} - {BEST_STATIC}
    assert sum(score.won for score in found.values() if not score.lossy) >= len(CELLS)
    assert all(0 <= score.won <= len(score.ratios) for score in found.values())
    assert {policy for policy, score in found.items() if score.lossy} <= {"greedy"}
    for score in found.values():
        assert score.left_out + len(score.ratios) == len(CELLS)
        assert score.policy != "plain" or set(score.over_plain.values()) == {1.0}
    means = [score.mean or 0.0 for score in scores(board, CELLS)]
    assert means == sorted(means, reverse=True)


@given(runs())
def test_ratios_do_not_depend_on_the_unit_of_time(played):
    slower = [
        replace(run, seconds=4 * run.seconds, seconds_at=tuple(at and 4 * at for at in run.seconds_at))
        for run in played
    ]
    assert scores(BoardRuns(slower), CELLS) == scores(BoardRuns(played), CELLS)
    assert checks(BoardRuns(slower), CELLS) == checks(BoardRuns(played), CELLS)


@given(runs())
def test_checks_are_of_every_cell_that_specrouter_played_and_of_what_applies(played):
    board = BoardRuns(played)
    found = checks(board, CELLS)
    ratios = board.ratios("specrouter")
    assert [check.cell for check in found] == [cell for cell in CELLS if cell in ratios]
    for check in found:
        assert check.ratios[STATIC] == ratios[check.cell]
        assert (EARLY in check.ratios) == (check.cell.load == "batch-1") == (check.beyond is not None)
        assert check.other in ("two-level", "")
        assert (OTHERS in check.ratios) == (check.other != "")
        assert set(check.missed) == {name for name, ratio in check.ratios.items() if ratio < LIMITS[name]}


def test_a_policy_that_is_slow_at_first_catches_up():
    cell = CELLS[0]
    static = [run_of(cell, BEST_STATIC, seed, 100.0) for seed in SEEDS]
    plain = [run_of(cell, "plain", seed, 50.0) for seed in SEEDS]
    ours = [run_of(cell, "specrouter", seed, 100.0, early=2.0) for seed in SEEDS]
    board = BoardRuns([*static, *plain, *ours])
    assert ratios_after(board, "specrouter", 100) == {cell: pytest.approx(0.5)}
    assert ratios_after(board, "specrouter", 1_000) == {cell: pytest.approx(0.5)}
    assert ratios_after(board, "specrouter", 10_000) == {}
    assert ratios_beyond(board, "specrouter") == {cell: pytest.approx(1.0)}
    (check,) = checks(board, CELLS)
    assert check.missed == (STATIC, EARLY)
    assert check.ratios[STATIC] == pytest.approx(6 / 7)
    assert check.ratios[PLAIN] == pytest.approx(12 / 7)


def test_short_cells_are_not_held_to_the_best_static_chain():
    cell = CELLS[0]
    short = [run_of(cell, policy, 0, 100.0, tokens=2_000) for policy in (BEST_STATIC, "plain", "specrouter")]
    (check,) = checks(BoardRuns(short), CELLS)
    assert STATIC not in check.ratios
    assert check.missed == ()


def test_where_it_loses_is_the_part_with_the_least_mean():
    ratios = {cell: 0.5 if cell.ladder == "steep" else 1.5 for cell in CELLS}
    assert by_part(ratios, "ladder") == {"even": 1.5, "steep": 0.5}
    assert "ladder steep (0.50)" in loses_at(ratios)
    assert {cell.ladder for cell, _ in worst_cells(ratios)} == {"steep"}
    one = {CELLS[0]: 1.0}
    assert loses_at(one) == ""


def test_regret_is_over_the_oracle_where_that_was_played():
    (cell, *_) = oracle_cells(CELLS)
    assert {(one.ladder, one.load) for one in oracle_cells(CELLS)} == {("even", "batch-1"), ("steep", "batch-1")}
    played = [run_of(cell, "oracle-chain", 0, 100.0)]
    played += [run_of(where, "two-level", seed, 80.0) for where in CELLS for seed in SEEDS]
    found = regrets(BoardRuns(played), (*POLICIES, "oracle-chain"), "oracle-chain", CELLS)
    assert found == {"two-level": pytest.approx(0.25), "oracle-chain": pytest.approx(0.0)}
    assert "oracle-chain" not in BoardRuns(played).policies
    assert regrets(BoardRuns(played), POLICIES, "oracle-chain", [one for one in CELLS if one != cell]) == {}
