"""Requests of a batch share a chain: what is predicted for it, that they go in step, and that it costs them nothing."""

from pathlib import Path

import numpy as np
import pytest
from paceline.policies import make_policy
from paceline.policies.specrouter.options import CONSTANTS
from paceline.policies.specrouter.policy import SpecRouter
from paceline.policies.specrouter.search import SearchFigures, best_chain, best_windows
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.on_disk import read_trace

RECORDING = Path(__file__).parents[3] / "recordings" / "pico.trace"


@pytest.fixture(scope="module")
def pico():
    trace = read_trace(RECORDING)
    cost = make_cost(default_cost(trace), trace, extrapolate=True)
    return Scenario(tables=TrieTables(trace), cost=cost)


def batch_of(scenario, batch):
    return Scenario(tables=scenario.tables, cost=scenario.cost, batch=batch)


def figures(seed, *, size=4, longest=6):
    rng = np.random.default_rng(seed)
    agreement = np.triu(rng.uniform(0.2, 0.95, (size, size)), 1)
    first_s = np.sort(rng.uniform(0.02, 1.0, size))
    return agreement, first_s[:, None] * (1.0 + rng.uniform(0.0, 0.3) * np.arange(longest + 1))


def played_s(levels, window, agreement, forward_s, drafting=1.0, undrafted=1.0):
    """Seconds per token, from every way that a round may go; some requests copy in place of drafting."""
    target = levels[-1]
    if len(levels) == 1:
        return forward_s[target, 0] / undrafted
    low, above = levels[0], levels[1]
    seconds = tokens = 0.0
    for kept in range(window + 1):
        chance = agreement[low, above] ** kept * (1.0 - agreement[low, above] if kept < window else 1.0)
        took = window * forward_s[low, 0] + forward_s[above, window]
        written = kept + 1
        if len(levels) == 3:
            took += drafting * forward_s[target, written] + (1.0 - drafting) * forward_s[target, 1]
            written = sum(agreement[above, target] ** count for count in range(written + 1))
        seconds, tokens = seconds + chance * took, tokens + chance * (undrafted + drafting * (written - 1.0))
    return seconds / tokens


@pytest.mark.parametrize("copies", [{}, {"drafting": 0.6, "undrafted": 1.8}, {"drafting": 0.1, "undrafted": 4.0}])
@pytest.mark.parametrize("seed", range(20))
def test_the_chain_in_step_is_the_best_of_all(seed, copies):
    agreement, forward_s = figures(seed)
    nothing = np.zeros(4)
    known = SearchFigures(agreement, forward_s, nothing, **copies)
    found = best_chain(known, form="in step")
    chains = [(3,), *((low, 3) for low in range(3)), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    for levels in chains:
        windows = range(1, 7 if len(levels) == 2 else 6) if len(levels) > 1 else [0]
        least = min(played_s(levels, window, agreement, forward_s, **copies) for window in windows)
        assert best_windows(levels, known, "in step").token_s == pytest.approx(least)
        assert found.token_s <= least * (1 + 1e-9)
    assert found.windows[1:] in ((), (1,))


def test_a_member_that_may_not_judge_and_one_that_costs_its_prompt_are_left_out():
    agreement, forward_s = figures(3)
    agreement[0, 1] = agreement[1, 3] = 1.0
    forward_s[1] *= 0.01
    known = SearchFigures(agreement, forward_s, np.zeros(4))
    free = best_chain(known, form="in step")
    assert 1 in free.levels
    drafts_only = best_chain(known, judges=[True, False, False, True], form="in step")
    assert len(drafts_only.levels) <= 2
    dear = best_chain(known._replace(entry_s=np.array([0.0, 10.0, 0.0, 0.0])), form="in step")
    assert 1 not in dear.levels


@pytest.mark.parametrize("batch", [1, 2, 4, 16, 64])
def test_no_batch_is_slower_than_the_target_alone(pico, batch):
    scenario = batch_of(pico, batch)
    plain, routed = (
        simulate(scenario, make_policy(name, pico.tables.pool), name).requests["finished_at_s"].max()
        for name in ("plain", "specrouter")
    )
    assert plain / routed > 0.98


@pytest.mark.parametrize("batch", [4, 16])
def test_requests_of_a_batch_go_in_step(pico, batch):
    """Few operations below the target hold up those that wait for it: two a round, copies among them."""
    policy = SpecRouter(pico.tables.pool)
    ops = simulate(batch_of(pico, batch), policy, "specrouter").ops
    by_target = ops["level"] == pico.tables.pool.target_level
    assert np.sum(~by_target) < 2.2 * np.sum(by_target)
    assert policy.shared_chain is not None
    assert ops["num_rows"][by_target].mean() > 0.8 * batch


def router_of(pico, agreement_by_tag, *, seconds=(0.0, 1.0, 3.0, 6.0, 10.0), rows=8, known=4):
    """A policy that knows seconds, and the rates of tags at the levels below `known`."""
    policy = SpecRouter(pico.tables.pool)
    knowledge, target = policy.scheduler.knowledge, pico.tables.pool.target_level
    for level, forward_s in enumerate(seconds):
        for width in (rows, 20 * rows):
            knowledge.profiler.note(level, new_tokens=width, seconds=forward_s * (1.0 + width / 1000))
    for tag, rate in agreement_by_tag.items():
        for count in range(400):
            for level in range(1, known):
                knowledge.agreement.note(tag, level, target, kept=count % 10 < 10 * rate, similar=float("nan"))
    return policy


def plans_of(policy, tags, *, rounds=40):
    """Plans of as many rounds in step, a request for each of `tags`, which end a round together."""
    made = []
    for _ in range(rounds):
        plans = [policy.scheduler.plan(tag, num_rows=len(tags), num_running=len(tags)) for tag in tags]
        for tag, plan in zip(tags, plans, strict=True):
            policy.scheduler.note_round(tag, plan, num_tokens=1, copied=False)
        made.append(plans)
    return made


def test_a_draft_goes_on_for_the_tags_to_which_it_is_worth_it(pico):
    """The mean rate of tags makes shorter windows than the tags do: what survives is of the good ones."""
    mixed = router_of(pico, {"good": 1.0, "bad": 0.2})
    alike = router_of(pico, {"good": 0.6, "bad": 0.6})
    tags = ["good", "bad"] * 4
    longest = [max(plan.draft.tokens for plan in plans_of(policy, tags)[-1]) for policy in (mixed, alike)]
    assert longest[0] > longest[1]


def test_a_tag_whose_tokens_are_not_worth_judging_leaves_first(pico):
    policy = router_of(pico, {"good": 0.9, "bad": 0.1}, rows=256)
    last = plans_of(policy, ["good", "bad"] * 128)[-1]
    windows = [0 if plan.draft is None else plan.draft.tokens for plan in last[:2]]
    assert windows[0] > windows[1]


def test_trials_take_no_more_than_their_share_of_the_seconds(pico):
    """Nobody tells what came of them here, so that they promise as much as ever."""
    policy = router_of(pico, {"a": 0.6}, seconds=(0.0, 1.0, 1.5, 2.0, 10.0), known=2)
    rounds = plans_of(policy, ["a"] * 8, rounds=1_200)
    tried = [index for index, plans in enumerate(rounds) if 0 < sum(plan.trial for plan in plans) <= 4 and index > 2]
    assert tried
    least_s = 1.5  # of a forward of the cheapest member that nobody knows
    for count, index in enumerate(tried, start=1):
        token_s = rounds[index - 1][0].chain.token_s
        assert count * least_s <= (1.0 + CONSTANTS.trial_share * index) * token_s
    assert tried[-1] > 600, "they go on"


def test_who_would_not_pay_if_it_were_always_right_is_never_tried(pico):
    policy = router_of(pico, {"a": 0.6}, seconds=(0.0, 1.0, 9.0, 9.5, 10.0))
    lowest = {plan.chain.levels[:-1] for plans in plans_of(policy, ["a"] * 8, rounds=100)[3:] for plan in plans}
    assert lowest == {(1,)}


def test_nothing_is_tried_where_exploring_is_off(pico):
    policy = SpecRouter(pico.tables.pool, explore=0, probe=0)
    simulate(batch_of(pico, 8), policy, "specrouter")
    assert policy.counters.trials == 2, "the warm-up of all"


def test_few_requests_have_chains_of_their_own(pico):
    policy = SpecRouter(pico.tables.pool)
    simulate(batch_of(pico, 2), policy, "specrouter")
    assert policy.shared_chain is None
    assert len(policy.chains) == 6
    shared = SpecRouter(pico.tables.pool, select="batch")
    simulate(batch_of(pico, 2), shared, "specrouter")
    assert shared.shared_chain is not None
    assert shared.chains == {}


def test_a_tag_that_went_in_step_goes_back_to_a_chain_of_its_own():
    """As the last requests run, or when load falls: after a while of few requests."""
    trace = read_trace(RECORDING)
    policy = SpecRouter(TrieTables(trace).pool)
    for _ in range(2):  # the warm-up, played by nobody
        assert policy.scheduler.plan("a", num_rows=8, num_running=8).trial
    policy.scheduler.knowledge.profiler.note(4, new_tokens=1, seconds=1.0)
    plans = [policy.scheduler.plan("a", num_rows=8, num_running=8) for _ in range(40)]
    assert not policy.chains
    for _ in plans:
        policy.scheduler.plan("a", num_rows=1, num_running=1)
    assert set(policy.chains) == {"a"}
