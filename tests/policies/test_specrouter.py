"""SpecRouter keeps the contract, finds the chain that pays and stays with it, alone, in step, and with copies."""

from dataclasses import replace
from inspect import signature
from math import inf, log, log2
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paceline.policies import Member, Pool, Verify, make_policy
from paceline.policies.check import check_pool
from paceline.policies.specrouter.copies import Copies
from paceline.policies.specrouter.estimates import EARLIER, OWN, CopiedTokens, cell_of
from paceline.policies.specrouter.options import CONSTANTS, RouterOptions
from paceline.policies.specrouter.plan import CopyWorth, draft_doubts
from paceline.policies.specrouter.policy import SpecRouter
from paceline.policies.specrouter.search import FoundChain, SearchFigures
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.workloads.arrival import Arrival

from ..decoding.script import run as run_one
from ..sim.serving.engine.served_runs import LineCost, Run, limits, limits_of, pico, workloads
from .making import TextSeen, built_by_check, done

OPTIONS = """
stop=window select=batch similarity=simscore every=1,explore=1,probe=0,hysteresis=0.0 most=1
without=lookups+optimism without=answers without=copies store=32 without=ease+evidence
costs=draft:1/mid:3/slim:6/target:10
"""


@pytest.mark.parametrize("text", ["specrouter", *(f"specrouter,{options}" for options in OPTIONS.split())])
def test_it_keeps_the_contract_and_commits_the_trunk(text):
    for policy in built_by_check(lambda pool: make_policy(text, pool), name=text):
        kept = policy._copies is not None and (policy._copies._open or policy._copies._texts._open)
        assert not kept, "nothing is kept of requests that are done"


def synthetic(acceptance, cost_ratios, *, off_trunk=None, requests=12, seed=0):
    spec = SyntheticSpec(
        requests=requests,
        tokens=96,
        models=("draft", "mid", "target"),
        acceptance=acceptance,
        off_trunk=off_trunk,
        depth_decay=0.0,
        cost_ratios=cost_ratios,
        reach=24,
        run=17,
        seed=seed,
    )
    trace = make_trace(spec)
    return Scenario(tables=TrieTables(trace), cost=make_cost("cpu", trace))


def replayed(scenario, **options):
    policy = SpecRouter(scenario.tables.pool, **options)
    return policy, simulate(scenario, policy, "specrouter")


def asked(policy, tag, running=1, *, begins=False):
    """The plan of a request of this tag, which all members have read, with as many running."""
    seen = SimpleNamespace(tag=tag, context_tokens=0, cached=lambda name: 0, remaining=64)
    return policy.scheduler.plan(seen, num_rows=running, num_running=running, begins=begins)


def judged_share(log, level):
    """Of verifications in the second half of the run, the share by a member."""
    verifies = log.steps["level"][log.steps["kind"] == 1]
    return float(np.mean(verifies[len(verifies) // 2 :] == level))


@pytest.mark.parametrize(("stop", "seed"), [("confidence", 0), ("window", 1)])
def test_a_useless_middle_model_is_dropped(stop, seed):
    scenario = synthetic((0.8, 0.8), (0.05, 0.5), seed=seed)
    policy, log = replayed(scenario, stop=stop)
    assert judged_share(log, 1) < 0.08
    assert judged_share(replayed(scenario, stop=stop, without="optimism")[1], 1) < 0.02
    assert asked(policy, "synthetic").chain.levels == (0, 2)


@pytest.mark.parametrize(("stop", "seed"), [("confidence", 0), ("window", 1)])
def test_costs_of_1_to_10_to_100_take_the_middle_level(stop, seed):
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), off_trunk=(0.7, 0.9), seed=seed)
    policy, log = replayed(scenario, stop=stop)
    assert judged_share(log, 1) > 0.5
    assert asked(policy, "synthetic").chain.levels == (0, 1, 2)


# Seconds to judge 0 to 6 tokens: of few the target needs more than of some, as on many processors; then a jump.
STEPS = (4.0, 6.0, 5.0, 4.0, 4.5, 4.5, 9.0)


def test_a_draft_looks_ahead_to_widths_whose_forwards_are_quicker():
    chain = FoundChain(levels=(0, 1), windows=(4,), level_s=(0.25, 2.0))
    figures = SearchFigures(np.array([[0, 0.5], [0, 0]]), np.array([(0.25,) * 7, STEPS]), np.zeros(2))
    found = draft_doubts(chain, figures, 0.01, 6)
    # From one and two tokens three cost less than none more. From three the next one costs 0.75 s for half a token of
    # 2 s, two more cost 1 s for three quarters of one, which is better; from four 0.25 s for half; then 4.75 s.
    assert found[:3] == (inf, inf, inf)
    assert [round(doubt, 9) for doubt in found[3:]] == [round(-log(least), 9) for least in (1.0 / 1.5, 0.25)]


def test_it_is_faster_than_what_it_may_choose_from_at_random():
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), off_trunk=(0.7, 0.9), requests=16)
    chains = ["plain", *(f"{name}:{n}/target" for name in ("draft", "mid") for n in (2, 4, 8))]
    chains += [f"draft:{n}/mid:{m}/target" for n in (2, 4, 8) for m in (4, 8)]
    seconds = [
        simulate(scenario, make_policy(name, scenario.tables.pool), name).requests["finished_at_s"].max()
        for name in chains
    ]
    _, log = replayed(scenario)
    assert log.requests["finished_at_s"].max() < 1.02 * min(seconds)


def test_hysteresis_keeps_a_chain():
    scenario = synthetic((0.7, 0.85), (0.1, 0.3), requests=16)
    restless, _ = replayed(scenario, every=1, probe=0, hysteresis=0.0)
    calm, _ = replayed(scenario, every=1, probe=0, hysteresis=0.5)
    assert restless.counters.switches > 2 * calm.counters.switches


def test_the_warm_up_times_every_member_and_scores_every_pair():
    policy = SpecRouter(check_pool())
    run_one(policy, budget=12)
    policy.scheduler.knowledge.digest()
    fresh = policy.scheduler.knowledge.agreement.freshness()
    models = range(1, 5)
    assert all(policy.scheduler.knowledge.profiler.known(level) for level in models)
    assert all(fresh[low, high] > 0 for low in models for high in models if low < high)


def test_early_refusals_are_those_of_the_run_log():
    scenario = synthetic((0.6, 0.9), (0.01, 0.1))
    policy, log = replayed(scenario)
    by_mid = (log.steps["kind"] == 1) & (log.steps["level"] == 1)
    refused = log.steps["judged"][by_mid] - log.steps["accepted"][by_mid]
    assert policy.counters.refused_early["mid"] == refused.sum() > 0
    assert policy.counters.judged["mid"] == log.steps["judged"][by_mid].sum()
    by_target = (log.steps["kind"] == 1) & (log.steps["level"] == 2)
    assert policy.counters.rounds == np.sum(by_target & (log.steps["prefill"] == 0))


def test_stated_costs_make_steps_independent_of_seconds():
    trace = make_trace(SyntheticSpec(requests=4, tokens=64, models=("draft", "mid", "target"), acceptance=(0.6, 0.9)))
    tables = TrieTables(trace)
    cost = make_cost("cpu", trace)
    slower = make_cost("cpu", trace, scale={"mid": 50.0})
    scenarios = [Scenario(tables=tables, cost=price) for price in (cost, slower)]
    logs = [replayed(scenario, costs="draft:1/mid:5/target:50")[1] for scenario in scenarios]
    for name in ("kind", "level", "asked", "drafted", "accepted"):
        np.testing.assert_array_equal(logs[0].steps[name], logs[1].steps[name])
    measured = [replayed(scenario)[1] for scenario in scenarios]
    assert len(measured[0].steps["kind"]) != len(measured[1].steps["kind"])


@pytest.mark.parametrize(("batch", "select"), [(16, "request"), (4, "batch")])
def test_batches_are_served(batch, select):
    scenario = synthetic((0.6, 0.9), (0.01, 0.1), requests=20)
    policy = SpecRouter(scenario.tables.pool, select=select)
    log = simulate(replace(scenario, batch=batch), policy, "specrouter")
    assert log.requests["divergent_tokens"].sum() == 0
    assert log.ops["num_rows"].max() > 1


RECORDING = Path(__file__).parents[2] / "recordings" / "pico.trace"


@pytest.fixture(scope="module")
def recorded():
    trace = read_trace(RECORDING)
    cost = make_cost(default_cost(trace), trace, extrapolate=True)
    return Scenario(tables=TrieTables(trace), cost=cost)


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_no_batch_is_slower_than_the_target_alone(recorded, batch):
    scenario = replace(recorded, batch=batch)
    plain, routed = (
        simulate(scenario, make_policy(name, recorded.tables.pool), name).requests["finished_at_s"].max()
        for name in ("plain", "specrouter")
    )
    assert plain / routed > 0.98


def test_requests_of_a_batch_go_in_step(recorded):
    batch = 16
    policy = SpecRouter(recorded.tables.pool)
    ops = simulate(replace(recorded, batch=batch), policy, "specrouter").ops
    by_target = ops["level"] == recorded.tables.pool.target_level
    assert np.sum(~by_target) < 2.2 * np.sum(by_target)
    assert policy.shared_chain is not None
    assert ops["num_rows"][by_target].mean() > 0.8 * batch


def router_of(recorded, agreement_by_tag, *, seconds=(0.0, 1.0, 3.0, 6.0, 10.0), rows=8, known=4):
    """A policy that knows seconds, and the rates of tags at the levels below `known`."""
    policy = SpecRouter(recorded.tables.pool)
    knowledge, target = policy.scheduler.knowledge, recorded.tables.pool.target_level
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
        plans = [asked(policy, tag, len(tags)) for tag in tags]
        for tag, plan in zip(tags, plans, strict=True):
            policy.scheduler.note_round(tag, plan, num_tokens=1, copied=False)
        made.append(plans)
    return made


def test_a_draft_goes_on_for_the_tags_to_which_it_is_worth_it(recorded):
    mixed = router_of(recorded, {"good": 1.0, "bad": 0.2})
    alike = router_of(recorded, {"good": 0.6, "bad": 0.6})
    tags = ["good", "bad"] * 4
    longest = [max(plan.draft.tokens for plan in plans_of(policy, tags)[-1]) for policy in (mixed, alike)]
    assert longest[0] > longest[1]


def test_a_tag_whose_tokens_are_not_worth_judging_leaves_first(recorded):
    policy = router_of(recorded, {"good": 0.9, "bad": 0.1}, rows=256)
    last = plans_of(policy, ["good", "bad"] * 128)[-1]
    windows = [0 if plan.draft is None else plan.draft.tokens for plan in last[:2]]
    assert windows[0] > windows[1]


def test_trials_take_no_more_than_their_share_of_the_seconds(recorded):
    policy = router_of(recorded, {"a": 0.6}, seconds=(0.0, 1.0, 1.5, 2.0, 10.0), known=2)
    rounds = plans_of(policy, ["a"] * 8, rounds=1_200)
    tried = [index for index, plans in enumerate(rounds) if 0 < sum(plan.trial for plan in plans) <= 4 and index > 2]
    assert tried
    least_s = 1.5  # of a forward of the cheapest member that nobody knows
    for count, index in enumerate(tried, start=1):
        token_s = rounds[index - 1][0].chain.token_s
        assert count * least_s <= (1.0 + CONSTANTS.trial_share * index) * token_s
    assert tried[-1] > 600, "they go on"


def test_who_would_not_pay_if_it_were_always_right_is_never_tried(recorded):
    policy = router_of(recorded, {"a": 0.6}, seconds=(0.0, 1.0, 9.0, 9.5, 10.0))
    lowest = {plan.chain.levels[:-1] for plans in plans_of(policy, ["a"] * 8, rounds=100)[3:] for plan in plans}
    assert lowest == {(1,)}


def test_nothing_is_tried_where_exploring_is_off(recorded):
    policy = SpecRouter(recorded.tables.pool, explore=0, probe=0)
    simulate(replace(recorded, batch=8), policy, "specrouter")
    assert policy.counters.trials == 2, "the warm-up of all"


def test_few_requests_have_chains_of_their_own(recorded):
    policy = SpecRouter(recorded.tables.pool)
    simulate(replace(recorded, batch=2), policy, "specrouter")
    assert policy.shared_chain is None
    assert len(policy.chains) == 6
    shared = SpecRouter(recorded.tables.pool, select="batch")
    simulate(replace(recorded, batch=2), shared, "specrouter")
    assert shared.shared_chain is not None
    assert shared.chains == {}


def test_a_tag_that_went_in_step_goes_back_to_a_chain_of_its_own(recorded):
    policy = SpecRouter(recorded.tables.pool)
    for _ in range(2):  # the warm-up, played by nobody
        assert asked(policy, "a", 8).trial
    policy.scheduler.knowledge.profiler.note(4, new_tokens=1, seconds=1.0)
    policy.scheduler.knowledge.profiler.note_prompt(num_prompt=8, budget=64)
    plans = [asked(policy, "a", 8) for _ in range(40)]
    assert not policy.chains
    for _ in plans:
        asked(policy, "a")
    assert set(policy.chains) == {"a"}


def test_a_request_that_begins_has_a_chain_chosen_for_it(recorded):
    """Members join most cheaply there. Elsewhere a selection holds for `every` rounds of the tag."""
    policy, log = replayed(recorded, every=1000, select="request")
    per_request = len(log.requests["request_id"]) - len(policy.chains)
    assert policy.counters.selections >= per_request
    rounds = policy.counters.rounds
    before = policy.counters.selections
    for begins in (False, True):
        plan = asked(policy, next(iter(policy.chains)), begins=begins)
        policy.scheduler.note_round(next(iter(policy.chains)), plan, num_tokens=1, copied=False)
    assert (policy.counters.rounds - rounds, policy.counters.selections - before) == (2, 1)


POOL = check_pool()
DEFAULTS = RouterOptions(
    **{name: option.default for name, option in list(signature(SpecRouter).parameters.items())[1:]}
)
# A copied token takes nothing, and saves a second if it is right.
FREE = CopyWorth(Verify("target"), 1.0, (0.0,) * DEFAULTS.most, 0.0)


def copies_of(**options):
    return Copies(POOL, replace(DEFAULTS, **options))


def judged_by(name, saved_s=1.0):
    return CopyWorth(Verify(name), saved_s, FREE.cost_s, FREE.least_s)


def copied(copies, seen, worth=FREE):
    copies.begin(seen)
    found = copies.best(seen, (worth,))
    return () if found is None else found.draft.copy


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 12))
def test_what_is_copied_followed_the_end_of_the_text_before_and_fits(text, room):
    found = list(copied(copies_of(), TextSeen("r", text, room=room)))
    assert len(found) < room
    if found:
        pieces = [text[at : at + 2] for at in range(len(text) - 1)]
        assert [text[-1], found[0]] in pieces
    if text[-1] not in text[:-1]:
        assert not found


@pytest.mark.parametrize("before", [0, 2])
def test_answers_that_end_in_mid_round_change_nothing_for_a_request_under_way(before):
    copies = copies_of(store=8)  # two answers fill a generation
    for number in range(before):
        copies.begin(TextSeen(f"old {number}", [9], [1, 2, 3, 4]))
        copies.learn(done(f"old {number}"))
    for number in range(3):
        copies.begin(TextSeen(f"other {number}", [9], [5, 6, 7, 8]))
    asked = TextSeen("r", [1], [2], pending=[3])
    copies.begin(TextSeen("r", [1], [2]))
    found = copies.best(asked, (judged_by("mid"),))
    for number in range(3):
        copies.learn(done(f"other {number}"))
    assert copies.best(asked, (judged_by("mid"),)) == found
    assert (found is not None) == (before > 0)


def test_earlier_answers_are_copied_once_they_are_done():
    copies = copies_of()
    copies.begin(TextSeen("a", [7], [1, 2, 3, 4, 5]))
    assert copied(copies, TextSeen("b", [1, 2])) == ()
    copies.learn(done("a"))
    assert copied(copies, TextSeen("c", [1, 2])) == (3, 4, 5)
    assert copied(copies, TextSeen("b", [1, 2], [3])) == (4, 5)


@pytest.mark.parametrize(("without", "own", "earlier"), [("lookups", (), (6,)), ("answers", (4,), ())])
def test_either_source_can_be_left_out(without, own, earlier):
    copies = copies_of(without=without)
    copies.begin(TextSeen("a", [9], [5, 6]))
    copies.learn(done("a"))
    assert copied(copies, TextSeen("b", [3, 4, 1, 3]))[:1] == own
    assert copied(copies, TextSeen("c", [5])) == earlier


def test_no_more_is_copied_than_pays():
    text = TextSeen("r", [1, 2, 3, 4, 5, 6, 1, 2, 3])
    whole = copied(copies_of(), text)
    assert whole[:3] == (4, 5, 6)
    dear = CopyWorth(Verify("target"), 1.0, tuple(0.9 * count for count in range(1, DEFAULTS.most + 1)), 0.9)
    assert copied(copies_of(), text, dear) == ()
    longer = CopyWorth(Verify("target"), 1.0, tuple(0.6 * count for count in range(1, DEFAULTS.most + 1)), 0.6)
    some = copied(copies_of(), text, longer)
    assert 0 < len(some) < len(whole)
    assert whole[: len(some)] == some


def test_what_the_target_wrote_tells_up_to_the_first_other_token():
    """Nothing was copied, and it tells as much."""
    copies = copies_of(without="answers")
    copies.begin(TextSeen("r", [1, 2, 3, 4, 5, 1]))  # 2, 3, 4, 5, 1 might follow
    before = copies._copied.rates("a").copy()
    copies.begin(TextSeen("r", [1, 2, 3, 4, 5, 1], [2, 9, 4]))
    after = copies._copied.rates("a")
    one, two, three = (cell_of(OWN, length, 1.0, 1) for length in (1, 2, 4))
    assert after[one] > before[one]
    assert after[two] < before[two]
    assert after[three] == before[three], "of what came after a wrong token nothing is known"


def test_within_a_round_copies_follow_what_is_pending_and_levels_below_the_target_judge_them():
    copies, text = copies_of(), [1, 2, 3, 4, 5, 6, 9, 1, 2]
    copies.begin(TextSeen("r", text))
    within = TextSeen("r", text, pending=[3, 4])
    assert copies.best(within, (FREE,)) is None, "the target judges copies alone"
    found = copies.best(within, (judged_by("mid"), FREE))
    assert found.judge == Verify("mid")
    assert found.draft.copy[:2] == (5, 6)
    assert copies.best(TextSeen("r", text, pending=[8]), (judged_by("mid"),)) is None, (
        "what is pending never stood there"
    )


def test_who_saves_most_judges():
    text = TextSeen("r", [1, 2, 3, 4, 1, 2, 3])
    for most, judge in ((2.0, "mid"), (0.5, "target")):
        copies = copies_of()
        copies.begin(text)
        assert copies.best(text, (judged_by("mid", most), FREE)).judge == Verify(judge)


def test_a_request_that_was_put_back_copies_as_if_it_had_not_been():
    """What was pending is gone, what was committed is not."""
    text = [1, 2, 3, 4, 5, 6, 9, 1, 2]
    put_back, other = copies_of(), copies_of()
    put_back.begin(TextSeen("r", text))
    assert put_back.best(TextSeen("r", text, pending=[3, 7]), (judged_by("mid"),)) is None
    other.begin(TextSeen("r", text))
    for copies in (put_back, other):
        assert copied(copies, TextSeen("r", text, [3, 4]))[:2] == (5, 6)
    assert put_back._copied.rates("a") == other._copied.rates("a")


def test_rates_of_copies_come_to_the_share_that_was_right_and_tags_start_from_all():
    tokens, cell = CopiedTokens(), cell_of(EARLIER, 5, 0.6, 3)
    for index in range(400):
        tokens.note("a", [cell, cell + 1], [7, 8], [7 if index % 4 else 6, 8])
    assert tokens.rates("a")[cell] == pytest.approx(0.75, abs=0.03)
    assert tokens.rates("b")[cell] == pytest.approx(0.75, abs=0.03)
    for _ in range(100):
        tokens.note("b", [cell, cell + 1], [7, 8], [6, 8])
    assert tokens.rates("b")[cell] < 0.1
    assert tokens.rates("a")[cell] == pytest.approx(0.75, abs=0.03)


@given(st.sampled_from((OWN, EARLIER)), st.integers(1, 400), st.floats(0.01, 1.0), st.integers(1, 9))
def test_cells_tell_sources_lengths_and_shares_apart(source, length, share, count):
    rates = CopiedTokens().rates("a")
    cell = cell_of(source, length, share, count)
    longer = cell_of(source, 2 * length, share, count)
    assert longer == cell or rates[longer] > rates[cell], "a longer match is trusted more"
    assert cell_of(1 - source, length, share, count) != cell
    assert cell == cell_of(source, 2 ** int(log2(length)), share, count)


class Widths(LineCost):
    """By the tokens fed alone."""

    lookup_s = 1e-5

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return (40 + 3 * new_tokens) / 10**6


FEW = [Arrival(f"q{index}", 0, 9, 30) for index in range(3)]


@given(arrivals=workloads(), bounds=limits(pico()), every=st.sampled_from([1, 8]))
@example(arrivals=FEW, bounds=limits_of(pico()), every=1)
def test_seconds_go_with_the_tokens_of_the_forward(arrivals, bounds, every):
    pool, told = pico().pool, []

    def made():
        policy = SpecRouter(pool, every=every)
        profiler = policy.scheduler.knowledge.profiler
        note = profiler.note

        def noted(level, *, new_tokens, seconds, held_tokens=0):
            if level == pool.target_level:
                told.append((new_tokens, seconds))
            note(level, new_tokens=new_tokens, seconds=seconds, held_tokens=held_tokens)

        profiler.note = noted
        return policy

    Run(arrivals, pico(), made, bounds, cost=Widths(pico())).go()
    assert told or arrivals is not FEW
    for new_tokens, seconds in told:
        assert abs(seconds - (40 + 3 * new_tokens) / 10**6) < 1e-11


class Stepped(LineCost):
    """A forward of the target takes `STEPS` by the tokens judged, any other one a sixteenth of the least."""

    lookup_s = 1.0

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return STEPS[min(new_tokens, len(STEPS)) - 1] if model == "target" else 0.25


def test_drafts_end_before_a_forward_takes_twice_as_long_unless_they_are_sure(recorded):
    _, log = replayed(replace(recorded, cost=Stepped(pico())), without="copies")
    judged = log.steps["judged"][(log.steps["kind"] == 1) & (log.steps["level"] == 4) & (log.steps["prefill"] == 0)]
    before, behind = np.sum((judged >= 1) & (judged <= 5)), np.sum((judged > 5) & (judged < 10))
    assert behind < before / 10, (before, behind)


@pytest.mark.parametrize(
    "names", ["target", "ngram/target", "draft/target", "ngram/draft/target", "draft/foreign/mid/target"]
)
def test_any_pool_will_do(names):
    """A model that only drafts never judges, and without a member that copies nothing is read."""
    names = names.split("/")
    members = [Member(name=name, model_free=name == "ngram", drafts_only=name == "foreign") for name in names]
    for policy in built_by_check(SpecRouter, pool=Pool(tuple(members))):
        assert (policy._copies is None) == ("ngram" not in names)
