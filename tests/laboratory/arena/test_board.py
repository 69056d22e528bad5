"""What the leaderboard says of a policy, and its page."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_laboratory.arena.board import (
    EARLY,
    LIMITS,
    OTHERS,
    PLAIN,
    STATIC,
    BoardRuns,
    check_page,
    checks,
    leaderboard,
    leaderboard_page,
    loses_at,
    oracle_cells,
    ranking,
    ratios_after,
    ratios_beyond,
    regrets,
    scores,
    worst_cells,
    write_leaderboard,
)
from paceline_laboratory.arena.cells import ArenaCell, Side, Split
from paceline_laboratory.arena.play import BEST_STATIC, Played

pytest.importorskip("matplotlib")
SPLIT = Split(tune=("home",), report=("away", "abroad"))
CELLS = tuple(
    ArenaCell(recording=recording, ladder=ladder, load=load)
    for recording in ("home", "away", "abroad")
    for ladder in ("even", "steep")
    for load in ("batch-1", "half")
)
POLICIES = ("specrouter", "two-level", "plain", "greedy")
SEEDS = (0, 1)


def run_of(cell, policy, seed, tokens_per_s, *, early=1.0, tokens=6_000, lossy=False):
    """A run at a speed, `early` times as slow in its first 1,000 tokens."""
    at_s = [count * early / tokens_per_s for count in (100, 1_000)]
    seconds = (tokens - 1_000 + 1_000 * early) / tokens_per_s
    arriving = cell.load == "half"
    told = lossy and not arriving
    return Played(
        cell=cell, policy=policy, seed=seed, tokens=tokens, seconds=seconds, path="stepped", mean_e2e_s=1.0,
        lossy=lossy, exact_share=None if arriving else 1.0, chain="draft:4/target" if policy == BEST_STATIC else "",
        seconds_at=(None, None, None) if arriving else (*at_s, None), think_us=9.0,
        same_share=0.75 if told else None, divergences=6 if told else None,
    )  # fmt: skip


SPEEDS = st.floats(0.5, 2.0)


@st.composite
def runs(draw):
    """Runs of all policies in all cells, some left out; `greedy` is lossy."""
    found = []
    for cell in CELLS:
        for policy in (BEST_STATIC, *POLICIES):
            if policy in (BEST_STATIC, "plain") or draw(st.integers(0, 4)):
                speed, early = draw(SPEEDS), draw(SPEEDS)
                found += [run_of(cell, policy, seed, speed, early=early, lossy=policy == "greedy") for seed in SEEDS]
    return found


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
    heads = "Ranking, Lossy policies, Learning, Where each one loses, What SpecRouter is held to, Regret"
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == heads.split(", ")
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
    assert least == {"specrouter": "100.0%", "two-level": "62.5%", "plain": "100.0%"}


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
