"""HedgeSpec: every drafter is scored from one text, and the best one gets the rounds."""

import pytest
from paceline.policies import Member, Pool, make_policy
from paceline.policies.bandits import HedgeSpec
from paceline.policies.check import check_pool

from ...decoding.script import run
from .recordings import flat, recording, replayed


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
