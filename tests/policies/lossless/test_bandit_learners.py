"""UCB and EXP3 find the best arm, and neither forgets the others."""

from random import Random

import pytest
from paceline.policies.bandits import Exp3, Ucb

RATES = (1.0, 1.6, 1.2)


def shares(learner, *, rounds):
    """Share of the best arm in the first and the last quarter, where arm i brings `RATES[i]` tokens a second."""
    rng, picks = Random(3), []
    for _ in range(rounds):
        arm = learner.pick()
        picks.append(arm)
        learner.reward(arm, RATES[arm] * rng.uniform(0.5, 1.5), 1.0)
    quarter = rounds // 4
    return picks[:quarter].count(1) / quarter, picks[-quarter:].count(1) / quarter


@pytest.mark.parametrize("learner", [Ucb(3, 1.0), Ucb(3, 0.3), Exp3(3, 0.1, Random(0))], ids=["ucb", "bold", "exp3"])
def test_the_share_of_the_best_arm_grows(learner):
    first, last = shares(learner, rounds=2000)
    assert last > first
    assert last > 0.6


def test_ucb_begins_with_every_arm_once_even_before_any_reward():
    learner = Ucb(4, 1.0)
    assert [learner.pick() for _ in range(4)] == [0, 1, 2, 3]
    assert learner.pick() in range(4)


def test_exp3_never_gives_an_arm_up():
    learner = Exp3(2, 0.2, Random(1))
    for _ in range(500):
        learner.reward(0, 2.0, 1.0)
    assert sum(learner.pick() == 1 for _ in range(1000)) > 50
