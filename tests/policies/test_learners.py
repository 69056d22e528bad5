"""Policies that keep the target's text and learn or stop by what they see: windows, entropy, bandits, experts, arms."""

from math import e, exp, log
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import speedup
from paceline.decoding.rules import Signal
from paceline.policies import EntropyAbove, check_policy, make_policy
from paceline.policies.bandits import Exp3, HedgeSpec, NormalHedge, Ucb, default_arms
from paceline.policies.check import check_pool
from paceline.policies.fixed import Svip
from paceline.policies.windows import AdaEDL, TwoLevel

from ..decoding.script import run
from .making import best_window, flat, recording, replayed, seen_of


@pytest.mark.parametrize(("rate", "ratio"), [(0.5, 0.05), (0.9, 0.3)])
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
    tables, policy = recording(0.8), "two-level,costs=draft:1/target:10"
    cheap, dear = (replayed(tables, flat(draft=s, target=1.0), make_policy(policy, tables.pool)) for s in (0.01, 0.9))
    assert cheap.steps["asked"].tolist() == dear.steps["asked"].tolist()


@given(st.floats(0.01, 5.0), st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_the_draft_ends_where_the_bound_falls_below_the_threshold(gamma, threshold, entropy):
    stop = AdaEDL(check_pool(), gamma=gamma, threshold=threshold).decide(seen_of()).stop
    bound = 1.0 - (gamma * entropy) ** 0.5
    if abs(bound - threshold) > 1e-9:
        assert stop.holds(Signal(0.5, entropy, 0.1), 1.0) == (bound < threshold)


def test_the_threshold_rises_under_refusals_and_falls_after_full_acceptance():
    policy = AdaEDL(check_pool(), threshold=0.5, wanted=0.8)
    before = policy.decide(seen_of()).stop.nats
    for _ in range(5):
        policy.learn(judged(0))
    assert policy.threshold == pytest.approx(0.5 + 5 * 0.1 * 0.01)
    assert policy.decide(seen_of()).stop.nats < before
    for _ in range(20):
        policy.learn(judged(4))
    assert policy.threshold < 0.5
    assert policy.decide(seen_of()).stop.nats > before


@pytest.mark.parametrize(("accepted", "end"), [(0, 1.0), (4, 0.0)])
def test_the_threshold_stays_a_share(accepted, end):
    policy = AdaEDL(check_pool(), step=1.0, smooth_threshold=0.0, wanted=0.5)
    for _ in range(9):
        policy.learn(judged(accepted))
    assert policy.threshold == end
    assert policy.decide(seen_of()).tokens == 12


def test_without_a_step_the_threshold_is_fixed():
    policy = AdaEDL(check_pool(), step=0.0)
    draft = policy.decide(seen_of())
    policy.learn(judged(0))
    assert policy.decide(seen_of()) is draft


def test_svip_drafts_end_at_the_first_token_of_too_much_entropy():
    short = 0

    class Watching(Svip):
        def decide(self, seen):
            nonlocal short
            entropies = [token.signal.entropy for token in seen.pending]
            assert all(entropy <= 0.81 for entropy in entropies[:-1])
            short += len(entropies) in range(1, 6) and entropies[-1] > 0.81
            return super().decide(seen)

    check_policy(lambda pool: Watching(pool, h=0.9, most=6))
    assert short > 10
    assert Svip(check_pool(), h=0.5).decide(seen_of()).stop == EntropyAbove(0.25)


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


@given(st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=60))
def test_chances_are_chances(rounds):
    learner = NormalHedge(3)
    for gains in rounds:
        learner.learn(gains)
        assert sum(learner.chances) == pytest.approx(1.0)
        assert all(0.0 <= chance <= 1.0 for chance in learner.chances)


def test_chances_are_those_of_the_paper():
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


def test_default_arms_have_one_two_and_three_levels():
    arms = "target draft:4/target mid:4/target slim:4/target draft:3/mid:6/target draft:3/slim:6/target ngram:6/target"
    assert default_arms(check_pool()) == arms.split()


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


def judged(accepted):
    return SimpleNamespace(num_judged=4, num_accepted=accepted, done=False)


@pytest.mark.parametrize("text", ["banditspec,kind=exp3", "autotune"])
def test_draws_are_those_of_the_seed(text):
    tables = recording(0.6, 0.9, requests=3)
    plays = []
    for seed in (0, 0, 1):
        policy = make_policy(f"{text},seed={seed}", tables.pool)
        replayed(tables, COST, policy, batch=2)
        plays.append(policy.plays)
    assert plays[0] == plays[1] != plays[2]
