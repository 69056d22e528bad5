"""NormalHedge: chances by regret, as in the paper."""

from math import e, exp, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.bandits import NormalHedge


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
