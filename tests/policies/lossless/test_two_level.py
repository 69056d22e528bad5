"""The window that should pay most is found, followed and kept apart from what was not asked for."""

import pytest
from paceline.benchmarks.shared.closed_forms import speedup
from paceline.policies import make_policy
from paceline.policies.check import check_pool
from paceline.policies.windows import TwoLevel

from ..closed_forms import best_window
from .recordings import flat, recording, replayed


@pytest.mark.parametrize(("rate", "ratio"), [(0.5, 0.05), (0.8, 0.1), (0.9, 0.3), (0.7, 0.5)])
def test_the_window_becomes_the_best_of_the_true_acceptance(rate, ratio):
    tables = recording(rate)
    policy = TwoLevel(tables.pool, memory=400)
    replayed(tables, flat(draft=ratio, target=1.0), policy)
    best = best_window(rate, ratio, most=16)
    assert speedup(rate, policy.window, ratio) >= 0.99 * speedup(rate, best, ratio)
    assert abs(policy.window - best) <= 3


def test_where_drafting_does_not_pay_the_target_decodes_alone():
    tables = recording(0.2)
    policy = TwoLevel(tables.pool, memory=400)
    log = replayed(tables, flat(draft=0.6, target=1.0), policy)
    assert policy.window == 0
    late = log.steps["drafted"][len(log.steps["drafted"]) // 2 :]
    assert 0 < late.sum() < 0.2 * len(late), "a probe now and then, and nothing else"


def test_stated_costs_take_the_place_of_measured_seconds():
    tables = recording(0.8)
    kinds = []
    for draft_s in (0.01, 0.9):
        log = replayed(
            tables, flat(draft=draft_s, target=1.0), make_policy("two-level,costs=draft:1/target:10", tables.pool)
        )
        kinds.append(log.steps["asked"].tolist())
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"start": 0}, r"start must be in \[1, most=16\], got 0"),
        ({"most": 0}, r"most must be in \[1, 1,000,000\], got 0"),
        ({"most": 10**9}, r"most must be in \[1, 1,000,000\], got 1000000000"),
        ({"start": 17}, r"start must be in \[1, most=16\], got 17"),
        ({"warmup": 0}, "warmup and every must be >= 1, got warmup=0, every=8"),
        ({"every": 0}, "warmup and every must be >= 1, got warmup=8, every=0"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"draft": "target"}, "draft must be a member below the target, got 'target'"),
        ({"costs": "draft:1"}, "costs must name every model of the pool, mid, slim, target is missing"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        TwoLevel(check_pool(), **options)
