"""The bandit settles on the chain of most tokens per second, follows a change, and draws by its seed."""

from statistics import mean

import pytest
from paceline.policies import make_policy
from paceline.policies.check import check_pool
from paceline.policies.under_load import Autotune

from ..lossless.recordings import flat, recording, replayed, seconds_of
from .loads import Rounds, compute_bound


def fixed_s(tables, cost, *texts, batch=1):
    """Seconds of the fastest of some policies."""
    return min(seconds_of(replayed(tables, cost, make_policy(text, tables.pool), batch=batch)) for text in texts)


@pytest.mark.parametrize(("rate", "draft_s"), [(0.9, 0.05), (0.6, 0.1), (0.2, 0.6)])
def test_it_converges_to_the_best_window(rate, draft_s):
    tables, cost = recording(rate, requests=40), flat(draft=draft_s, target=1.0)
    policy = Autotune(tables.pool)
    taken = seconds_of(replayed(tables, cost, policy))
    windows = [1, 2, 4, 8]
    assert taken < 1.15 * fixed_s(tables, cost, "plain", *(f"draft:{window}/target" for window in windows))
    assert policy.resets == 0, "nothing has changed"


def test_arms_may_be_chains_of_any_length():
    tables, cost = recording(0.5, 0.9), flat(draft=0.05, mid=0.2, target=1.0)
    policy = make_policy("autotune,arms=target@draft:4/target@mid:2..4:2/target", tables.pool)
    replayed(tables, cost, policy)
    assert policy.arms == ("target", "draft:4/target", "mid:2/target", "mid:4/target")
    assert policy.plays[2] + policy.plays[3] > 0.8 * sum(policy.plays)


def test_it_follows_a_change():
    good, bad = recording(0.95, requests=2, tokens=800), recording(0.05, requests=2, tokens=800)
    cost = flat(draft=0.3, target=1.0)
    policy = Autotune(good.pool)
    replayed(good, cost, policy)
    assert policy.resets == 0
    before = list(policy.plays)
    log = replayed(bad, cost, policy)
    assert policy.resets >= 1
    alone = policy.plays[0] - before[0]
    assert alone > 0.6 * (sum(policy.plays) - sum(before))
    assert (log.steps["drafted"][-400:] > 0).mean() < 0.1


def test_what_was_learnt_is_priced_at_the_size_of_the_batch():
    """Where verification is free at batch 1 and dear at batch 64, each has an arm of its own, and at once."""
    tables, cost = recording(0.8, requests=192, tokens=48), compute_bound(draft_s=0.1)
    policy = Autotune(tables.pool)
    means = []
    for batch in (1, 64, 1):
        watched = Rounds(policy)
        replayed(tables, cost, watched, batch=batch)
        full = [window for num_running, window in watched.begun if num_running == batch]
        means.append(mean(full[-len(full) // 3 :]))
    assert policy.resets == 0
    assert means[0] > 1.8 * means[1]
    assert means[2] > 0.8 * means[0]


def test_draws_are_those_of_the_seed():
    tables, cost = recording(0.8, requests=3), flat(draft=0.1, target=1.0)
    plays = []
    for seed in (0, 0, 1):
        policy = make_policy(f"autotune,seed={seed}", tables.pool)
        replayed(tables, cost, policy, batch=2)
        plays.append(policy.plays)
    assert plays[0] == plays[1] != plays[2]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"explore": 1.5}, r"explore must be in \[0, 1\], got 1.5"),
        ({"trial": 0}, "trial must be >= 1, got 0"),
        ({"change": 0.0}, "change must be > 0 and finite, got 0.0"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"arms": "draft:1..65/target"}, "must hold 64 cells at most, got 65 chains"),
        ({"arms": "draft:4"}, "it must end in the target"),
        ({"arms": "nobody:4/target"}, "unknown model 'nobody'"),
        ({"costs": "draft:1"}, "costs must name every model of the pool"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        Autotune(check_pool(), **options)
