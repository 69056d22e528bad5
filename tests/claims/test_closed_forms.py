"""The synthetic generator, replayed by the simulator, does what the closed forms say: within 1% on long traces.

The generator draws agreement independently along the trunk, with difficulty shared by all members. So a member agrees
with the next larger one at the ratio of their rates, whatever that one does itself: the independence the forms assume.
"""

import pytest
from paceline.benchmarks.shared.closed_forms import chain_speed
from paceline.benchmarks.shared.independent import recording, simulated

WITHIN = 0.01


def assert_agree(tables, rates, windows, forward_s):
    _, per_round, per_token = simulated(tables, windows, forward_s)
    wanted = chain_speed(rates, windows, forward_s)
    assert per_round == pytest.approx(wanted.tokens, rel=WITHIN)
    assert per_token == pytest.approx(wanted.seconds_per_token, rel=WITHIN)


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_two_levels(rate):
    tables = recording((rate,), requests=12, reach=5, run=5)
    for window in (2, 5):
        for ratio in (0.05, 0.3):
            assert_agree(tables, (rate,), (window,), (ratio, 1.0))


def test_three_levels():
    rates = (0.8, 0.9)
    tables = recording(rates, requests=8, reach=9, run=3)
    for windows in ((2, 3), (3, 4)):
        assert_agree(tables, rates, windows, (0.05, 0.3, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "requests"), [(0.3, 14), (0.5, 20), (0.7, 34), (0.9, 100)])
def test_a_grid_of_two_levels(rate, requests):
    tables = recording((rate,), requests=requests, reach=8, run=8)
    for window in (1, 3, 5, 8):
        for ratio in (0.01, 0.1, 0.5):
            assert_agree(tables, (rate,), (window,), (ratio, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.6, 0.75), (0.5, 0.9), (0.8, 0.9)])
def test_a_grid_of_three_levels(rates):
    tables = recording(rates, requests=16, reach=11, run=4)
    for windows in ((1, 2), (2, 6), (4, 4), (3, 6)):
        for forward_s in ((0.02, 0.1, 1.0), (0.1, 0.4, 1.0)):
            assert_agree(tables, rates, windows, forward_s)


@pytest.mark.slow
def test_four_levels():
    rates = (0.7, 0.8, 0.9)
    tables = recording(rates, requests=30, reach=9, run=5)
    assert_agree(tables, rates, (2, 3, 4), (0.02, 0.1, 0.4, 1.0))
