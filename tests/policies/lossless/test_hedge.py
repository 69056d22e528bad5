"""HedgeSpec: every drafter is scored from one text, and the best one gets the rounds."""

from math import e, exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Member, Pool, make_policy
from paceline.policies.check import check_pool
from paceline.policies.lossless.hedge import HedgeSpec
from paceline.policies.parts.normal_hedge import NormalHedge

from ..script import run
from .recordings import flat, recording, replayed


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=60))
def test_chances_are_chances(rounds):
    learner = NormalHedge(3)
    for gains in rounds:
        learner.learn(gains)
        assert sum(learner.chances) == pytest.approx(1.0)
        assert all(0.0 <= chance <= 1.0 for chance in learner.chances)


def test_chances_are_those_of_the_paper():
    """After one round of gains 1, 0.5, 0: regrets 0.5, 0, -0.5."""
    learner = NormalHedge(3)
    learner.learn([1.0, 0.5, 0.0])
    assert learner.chances == pytest.approx([1.0, 0.0, 0.0])
    learner.learn([0.0, 1.0, 1.0])  # all chances were the first one's, which gained nothing
    regrets = [0.5, 1.0, 0.5]
    low, high = 0.01, 10.0
    for _ in range(100):
        scale = (low + high) / 2
        mean = sum(exp(max(regret, 0.0) ** 2 / 2 / scale) for regret in regrets) / 3
        low, high = (scale, high) if mean > e else (low, scale)
    weights = [max(regret, 0.0) / scale * exp(max(regret, 0.0) ** 2 / 2 / scale) for regret in regrets]
    assert learner.chances == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-6)


def test_regret_grows_as_the_root_of_time():
    learner, rng, lost = NormalHedge(5), Random(0), 0.0
    rounds = 2000
    for _ in range(rounds):
        gains = [rng.random() * (0.8 + 0.2 * (expert == 3)) for expert in range(5)]
        lost += gains[3] - sum(chance * gain for chance, gain in zip(learner.chances, gains, strict=True))
        learner.learn(gains)
    assert lost < 3 * (rounds * log(5)) ** 0.5
    assert learner.chances[3] > 0.9


@pytest.mark.parametrize(("rates", "best"), [((0.3, 0.9), "mid"), ((0.8, 0.82), "draft")])
def test_the_drafter_that_pays_gets_the_rounds(rates, best):
    tables = recording(*rates)
    policy = make_policy("hedgespec", tables.pool)
    replayed(tables, flat(draft=0.05, mid=0.2, target=1.0), policy)
    assert policy.drafters == ("draft", "mid")
    assert policy.chances[policy.drafters.index(best)] > 0.9


def test_an_evaluation_asks_every_member_and_scores_what_each_wrote():
    policy = HedgeSpec(check_pool(), window=4, every=2)
    asked = []
    learn = policy.learn

    def watch(outcome):
        asked.append(type(outcome.step).__name__ + " " + outcome.step.model)
        learn(outcome)

    policy.learn = watch
    run(policy, budget=30, prompt=(1, 2, 3))
    first = asked[: asked.index("Verify target") + 1]
    assert first[:1] == ["Draft ngram"]
    assert first[1] in {"Draft draft", "Verify draft"}
    assert first[2:] == ["Verify mid", "Verify slim", "Verify target"]
    assert asked.count("Verify slim") >= asked.count("Verify target") // 3


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"every": 1}, "every must be >= 2, got 1"),
        ({"window": 0}, "draft tokens must be >= 1, got 0"),
        ({"memory": 0}, "memory must be >= 1, got 0"),
        ({"reward": "joy"}, "reward must be speed or tokens, got 'joy'"),
        ({"reward": "tokens", "costs": "x"}, "costs are for reward=speed"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        HedgeSpec(check_pool(), **options)


def test_drafters_that_cannot_judge_are_refused_by_name():
    pool = Pool((Member(name="eagle", drafts_only=True), Member(name="target")))
    with pytest.raises(ValueError, match="hedgespec scores drafters by a forward over text of others, and eagle only"):
        HedgeSpec(pool)
    with pytest.raises(ValueError, match="hedgespec needs a drafter below the target"):
        HedgeSpec(Pool((Member(name="target"),)))
