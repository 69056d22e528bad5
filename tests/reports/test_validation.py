"""Which measured runs a cell of a validation is compared with, and what is not known of one."""

from dataclasses import replace

import pytest
from paceline.reports.validation import middle_runs, total_s, tpot_error_of

from .making import by_hand


def slower(times):
    """The run of `by_hand`, each of whose times is so many times as late."""
    log = by_hand()
    late = {name: log.requests[name] * times for name in log.requests if name.endswith("_at_s")}
    return replace(log, requests=log.requests | late)


def of_one_token():
    log = by_hand()
    return replace(log, requests={name: column[1:] for name, column in log.requests.items()})


@pytest.mark.parametrize(
    ("times", "middle", "error"),
    [
        ((1.5,), (1.5,), -1 / 3),
        ((3.0, 1.0), (1.0, 3.0), -1 / 2),
        ((4.0, 1.0, 2.0), (2.0,), -1 / 2),
        ((4.0, 1.0, 2.0, 3.0), (2.0, 3.0), -3 / 5),
    ],
)
def test_a_run_is_held_against_those_of_the_median_which_are_two_of_an_even_number(times, middle, error):
    found = middle_runs([slower(one) for one in times])
    assert [total_s(log) / total_s(by_hand()) for log in found] == pytest.approx(middle)
    assert tpot_error_of(by_hand(), found) == pytest.approx(error)


def test_no_time_per_token_is_known_where_each_request_has_one_token():
    assert tpot_error_of(of_one_token(), [of_one_token()] * 2) is None
