"""How true seconds are, from cells whose seconds are known: the simulator's verdict, and that of the measured runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.validation import Cell, repeatability, verdict


def cell_of(policy, simulated_s, *runs_s, batch=1, runs_equal=True):
    return Cell(
        policy=policy,
        batch=batch,
        tag="a",
        simulated_s=simulated_s,
        runs_s=runs_s,
        tpot_error=None,
        forwards_error=0.0,
        beside_error=0.0,
        equal=True,
        runs_equal=runs_equal,
    )


def test_one_run_says_nothing_of_others():
    assert repeatability([cell_of("p", 1.0, 2.0)]) is None


def test_of_two_runs_each_foretells_the_other():
    cells = [cell_of("p", 9.0, 1.0, 1.25), cell_of("q", 9.0, 2.0, 1.0, runs_equal=False)]
    found = repeatability(cells)
    # errors: p 1/1.25 and 1.25/1, q 2/1 and 1/2, each less 1
    assert found.median_error == pytest.approx((0.25 + 0.5) / 2)
    assert found.worst_error == pytest.approx(1.0)
    assert found.same_choice == 0.0  # p is best in the first, q in the second
    assert found.mean_regret == pytest.approx((0.25 + 1.0) / 2)  # p takes 1.25 where q takes 1, q 2 where p takes 1
    assert found.equal == 0.5


def test_of_three_runs_each_foretells_the_median_of_the_others():
    found = repeatability([cell_of("p", 9.0, 1.0, 2.0, 4.0)])
    assert found.worst_error == pytest.approx(4.0 / 1.5 - 1)
    assert found.median_error == pytest.approx(1 - 1.0 / 3.0)  # 1 of 3, 2 of 2.5 and 4 of 1.5


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    num_runs=st.integers(2, 4),
)
def test_a_machine_that_repeats_itself_has_no_errors_whatever_the_simulator_says(seconds, num_runs):
    cells = [
        cell_of(f"p{place}", 5.0, *[one] * num_runs, batch=1 + place % 2)
        for place, one in enumerate(dict.fromkeys(seconds))
    ]
    found = repeatability(cells)
    assert (found.worst_error, found.worst_regret, found.same_choice, found.equal) == (0.0, 0.0, 1.0, 1.0)


@given(runs=st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=6))
def test_a_simulator_that_is_one_of_two_runs_is_as_far_off_the_other_as_these_are_from_each_other(runs):
    """The verdict on the simulator and that on the machine are in the same terms."""
    found = repeatability([cell_of(f"p{place}", 5.0, *pair) for place, pair in enumerate(runs)])
    halves = [
        verdict([cell_of(f"p{place}", pair[told], pair[1 - told]) for place, pair in enumerate(runs)])
        for told in (0, 1)
    ]
    assert found.worst_error == max(half.worst_error for half in halves)
    assert found.same_choice == pytest.approx(sum(half.same_choice for half in halves) / 2)
    assert found.mean_regret == pytest.approx(sum(half.mean_regret for half in halves) / 2)


def test_no_cells_are_no_verdict():
    with pytest.raises(ValueError, match="cells must be one or more, got none"):
        verdict([])
