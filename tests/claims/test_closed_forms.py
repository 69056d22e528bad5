"""The synthetic generator, replayed by the simulator, does what the closed forms say: within 1% on long traces.

The generator draws agreement independently along the trunk, with difficulty shared by all members. So a member agrees
with the next larger one at the ratio of their rates, whatever that one does itself: the independence the forms assume.
"""

import pytest
from paceline.benchmarks.shared.closed_forms import chain_speed
from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.sim import Scenario, TableCost, TrieTables, recorded_pool, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.meta import CostTable

NAMES = {2: ("draft", "target"), 3: ("draft", "mid", "target"), 4: ("draft", "mid", "large", "target")}
WITHIN = 0.01


def long_recording(rates, *, requests, reach, run):
    """Members agree with the next larger one at `rates`, smallest first."""
    with_target = [1.0]
    for rate in reversed(rates):
        with_target.append(rate * with_target[-1])
    spec = SyntheticSpec(
        requests=requests,
        tokens=5000,
        prompt_tokens=1,
        models=NAMES[len(rates) + 1],
        acceptance=tuple(reversed(with_target[1:])),
        off_trunk=rates,
        depth_decay=0.0,
        shared_difficulty=1.0,
        reach=reach,
        run=run,
    )
    return TrieTables(make_trace(spec))


def flat_cost(names, forward_s):
    """A forward costs the same at every width."""
    pairs = zip(names, forward_s, strict=True)
    return TableCost("flat", {name: CostTable(new_tokens=(1, 64), seconds=(taken, taken)) for name, taken in pairs})


def assert_agree(tables, rates, windows, forward_s):
    names = NAMES[len(forward_s)]
    chain = "/".join([*(f"{name}:{window}" for name, window in zip(names, windows, strict=False)), names[-1]])
    scenario = Scenario(tables=tables, cost=flat_cost(names, forward_s), strict=True)
    summary = summarise_run(simulate(scenario, make_policy(chain, recorded_pool(tables.trace)), chain))
    wanted = chain_speed(rates, windows, forward_s)
    assert summary.acceptance_length == pytest.approx(wanted.tokens, rel=WITHIN)
    assert summary.duration_s / summary.output_tokens == pytest.approx(wanted.seconds_per_token, rel=WITHIN)


@pytest.mark.parametrize("rate", [0.5, 0.8])
def test_two_levels(rate):
    tables = long_recording((rate,), requests=12, reach=5, run=5)
    for window in (2, 5):
        for ratio in (0.05, 0.3):
            assert_agree(tables, (rate,), (window,), (ratio, 1.0))


def test_three_levels():
    rates = (0.8, 0.9)
    tables = long_recording(rates, requests=8, reach=9, run=3)
    for windows in ((2, 3), (3, 4)):
        assert_agree(tables, rates, windows, (0.05, 0.3, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "requests"), [(0.3, 14), (0.5, 20), (0.7, 34), (0.9, 100)])
def test_a_grid_of_two_levels(rate, requests):
    tables = long_recording((rate,), requests=requests, reach=8, run=8)
    for window in (1, 3, 5, 8):
        for ratio in (0.01, 0.1, 0.5):
            assert_agree(tables, (rate,), (window,), (ratio, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.6, 0.75), (0.5, 0.9), (0.8, 0.9)])
def test_a_grid_of_three_levels(rates):
    tables = long_recording(rates, requests=16, reach=11, run=4)
    for windows in ((1, 2), (2, 6), (4, 4), (3, 6)):
        for forward_s in ((0.02, 0.1, 1.0), (0.1, 0.4, 1.0)):
            assert_agree(tables, rates, windows, forward_s)


@pytest.mark.slow
def test_four_levels():
    rates = (0.7, 0.8, 0.9)
    tables = long_recording(rates, requests=30, reach=9, run=5)
    assert_agree(tables, rates, (2, 3, 4), (0.02, 0.1, 0.4, 1.0))
