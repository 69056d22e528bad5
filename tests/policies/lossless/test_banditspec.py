"""BanditSpec plays the best chain more and more, whichever the learner; draws are the seed's."""

import pytest
from paceline.policies import make_policy
from paceline.policies.bandits import BanditSpec, default_arms
from paceline.policies.check import check_pool

from .recordings import flat, recording, replayed

COST = flat(draft=0.05, mid=0.2, target=1.0)


@pytest.mark.parametrize("kind", ["ucb", "exp3"])
def test_the_fastest_chain_is_played_most(kind):
    tables = recording(0.5, 0.9)
    arms = "target@draft:4/target@mid:4/target"
    policy = make_policy(f"banditspec,kind={kind},arms={arms},explore=0.3", tables.pool)
    replayed(tables, COST, policy)
    assert policy.arms == tuple(arms.split("@"))
    assert policy.plays[2] > 0.5 * sum(policy.plays)


def test_reward_in_tokens_does_not_look_at_seconds():
    tables = recording(0.5, 0.9)
    plays = []
    for cost in (COST, flat(draft=9.0, mid=0.001, target=1.0)):
        policy = make_policy("banditspec,reward=tokens", tables.pool)
        replayed(tables, cost, policy)
        plays.append(policy.plays)
    assert plays[0] == plays[1]


def test_draws_are_those_of_the_seed():
    tables = recording(0.5, 0.9, requests=2)
    plays = []
    for seed in (0, 0, 1):
        policy = make_policy(f"banditspec,kind=exp3,seed={seed}", tables.pool)
        replayed(tables, COST, policy, batch=2)
        plays.append(policy.plays)
    assert plays[0] == plays[1] != plays[2]


def test_default_arms_have_one_two_and_three_levels():
    assert default_arms(check_pool()) == [
        "target",
        "draft:4/target",
        "mid:4/target",
        "slim:4/target",
        "draft:3/mid:6/target",
        "draft:3/slim:6/target",
        "ngram:6/target",
    ]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"kind": "thompson"}, "kind must be ucb or exp3, got 'thompson'"),
        ({"reward": "joy"}, "reward must be speed or tokens, got 'joy'"),
        ({"explore": -0.1}, "explore must be >= 0 and finite with kind=ucb, got -0.1"),
        ({"kind": "exp3", "explore": 0.0}, r"explore must be in \(0, 1\] with kind=exp3, got 0.0"),
        ({"seed": 1}, "seed is for kind=exp3, since ucb draws nothing, got 1"),
        ({"reward": "tokens", "costs": "draft:1"}, "costs are for reward=speed"),
        ({"arms": "target@target"}, "arms must differ, got 'target@target'"),
        ({"arms": "draft:4/target@"}, "unknown model ''"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        BanditSpec(check_pool(), **options)
