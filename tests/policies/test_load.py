"""Policies that look at load: windows fall as a batch grows, speculation ends at thresholds, who is late goes first."""

import pickle
from statistics import mean
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.loop import Loop
from paceline.decoding.seen import Observation
from paceline.decoding.session import Session
from paceline.policies import Draft, Verify, make_policy
from paceline.policies.about import about_of
from paceline.policies.check import ToyWorld, check_pool
from paceline.policies.under_load import Autotune, Goodput, OffUnderLoad, Slo
from paceline.runs.log import RunLedger
from paceline.sim import TrieTables
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.traces import SyntheticSpec, make_trace

from .making import Rounds, built_by_check, compute_bound, flat, recording, replayed, seconds_of


def windows(tables, cost, batch):
    """Of rounds that began while the batch was full, the first ones left out."""
    watched = Rounds(Goodput(tables.pool))
    replayed(tables, cost, watched, batch=batch)
    full = [window for num_running, window in watched.begun if num_running == batch]
    return full[len(full) // 3 :]


def test_the_window_falls_as_the_batch_grows():
    tables = recording(0.8, requests=128, tokens=48)
    means = [mean(windows(tables, compute_bound(), batch)) for batch in (1, 8, 32, 96)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 6
    assert means[-1] < 1.5


@pytest.mark.parametrize("batch", [1, 24])
def test_it_is_nearly_as_fast_as_the_best_fixed_window(batch):
    tables, cost = recording(0.7, requests=max(32, 8 * batch), tokens=48), compute_bound()
    taken = {
        text: seconds_of(replayed(tables, cost, make_policy(text, tables.pool), batch=batch))
        for text in ("goodput", "plain", *(f"draft:{window}/target" for window in (1, 2, 4, 8)))
    }
    goodput = taken.pop("goodput")
    assert goodput < 1.05 * min(taken.values())
    assert max(taken.values()) > 1.2 * goodput, "windows matter here"


@pytest.mark.parametrize("batch", [1, 8])
def test_of_a_drafter_that_costs_by_the_round_long_windows_are_found(batch):
    """A draft takes 4 ms whatever it holds, and 0.2 ms a token: per token of a window of 2 it looks dear."""
    tables = recording(0.8, requests=48, tokens=48)
    drafter = DrafterFigures(terms=DraftTerms(per_round_s=4e-3, per_token_s=2e-4), forwards=None)
    cost = FileCost("rounds", {"draft": drafter, "target": CostLine(intercept_s=8e-3, per_new_token_s=5e-5)})
    taken = {
        text: seconds_of(replayed(tables, cost, make_policy(text, tables.pool), batch=batch))
        for text in ("goodput", "draft:2/target", "draft:5/target", "draft:8/target")
    }
    assert taken["goodput"] < 1.05 * min(taken.values())
    assert taken["goodput"] < 0.85 * taken["draft:2/target"]


def test_the_window_grows_with_the_context():
    """Verification reads once what the rows hold, whatever the window: the more they hold, the less a token adds."""
    lines = {
        "draft": CostLine(intercept_s=0.02),
        "target": CostLine(intercept_s=0.2, per_new_token_s=0.01, per_kv_token_s=1e-4),
    }
    short, long = (mean(windows(prompts_of(tokens), FileCost("lines", lines), 32)) for tokens in (8, 800))
    assert long > short + 0.7


def test_it_hears_of_acceptance_where_nothing_pays():
    cost = compute_bound(draft_s=0.3)
    bad, good = recording(0.05, requests=2, tokens=400), recording(0.95, requests=2, tokens=400)
    policy = Goodput(bad.pool)
    replayed(bad, cost, policy)
    assert policy.best == 0
    replayed(good, cost, policy)
    assert policy.best >= 4


def test_one_request_drafts_where_nothing_pays():
    tables = recording(0.05, requests=64, tokens=48)
    watched = Rounds(Goodput(tables.pool, explore=4))
    replayed(tables, compute_bound(draft_s=0.3), watched, batch=16)
    full = [window for num_running, window in watched.begun if num_running == 16]
    late = full[len(full) // 2 :]
    assert set(late) == {0, 1}
    assert late.count(1) <= len(late) // 16


@pytest.mark.parametrize(("prompt_tokens", "drafts"), [(4, True), (400, False)])
def test_a_drafter_that_reads_more_than_it_saves_is_left_alone(prompt_tokens, drafts):
    lines = {
        "draft": CostLine(intercept_s=0.01, per_new_token_s=0.001),
        "target": CostLine(intercept_s=0.1, per_new_token_s=0.003),
    }
    tables = prompts_of(prompt_tokens, answer=24)
    assert (mean(windows(tables, FileCost("lines", lines), 16)) > 0.5) == drafts


def test_a_lookup_that_finds_nothing_leaves_plain_decoding():
    policy = Goodput(check_pool(), draft="ngram")
    nothing = [0] * 5
    load = SimpleNamespace(
        num_running=1, context_tokens=9, num_forwards=nothing, new_tokens=nothing, duration_s=nothing
    )
    seen = SimpleNamespace(num_pending=0, request_id="r", load=load, last=None)
    assert policy.decide(seen).model == "ngram"
    seen.last = SimpleNamespace(num_emitted=0)
    assert policy.decide(seen) == Verify("target")


def fixed_s(tables, cost, *texts, batch=1):
    """Seconds of the fastest of some policies."""
    return min(seconds_of(replayed(tables, cost, make_policy(text, tables.pool), batch=batch)) for text in texts)


@pytest.mark.parametrize(("rate", "draft_s"), [(0.9, 0.05), (0.2, 0.6)])
def test_it_converges_to_the_best_window(rate, draft_s):
    tables, cost = recording(rate, requests=16), flat(draft=draft_s, target=1.0)
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
    tables, cost = recording(0.8, requests=96, tokens=32), compute_bound(draft_s=0.1)
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


def begun(**options):
    """(requests that ran, window) of every round of a check, which runs batches of 1, 4 and 16."""
    watched = built_by_check(lambda pool: Rounds(OffUnderLoad(pool, **options)))
    return [pair for rounds in watched for pair in rounds.begun]


@settings(max_examples=10)
@given(st.integers(1, 20))
def test_speculation_is_off_exactly_from_the_threshold_on(at):
    rounds = begun(at=at)
    assert all(window == (4 if num_running < at else 0) for num_running, window in rounds)
    assert {1, 4, 16} <= {num_running for num_running, _ in rounds}


@settings(max_examples=10)
@given(st.dictionaries(st.integers(2, 16), st.integers(0, 9), max_size=4), st.integers(0, 9))
def test_the_table_says_the_window_of_every_load(later, first):
    table = {1: first} | later
    rounds = begun(table="/".join(f"{size}:{table[size]}" for size in sorted(table)), draft="mid")
    for num_running, window in rounds:
        assert window == table[max(size for size in table if size <= num_running)]


def test_another_policy_decides_below_the_threshold():
    policy = make_policy("off-under-load,policy=draft:2/mid:4/target,at=3", check_pool())
    assert [first for first, _ in policy.steps] == [1, 3]
    assert [str(part.spec) for _, part in policy.steps] == ["draft:2/mid:4/target", "target"]
    assert policy.most_pending == 6


def test_it_says_what_its_policy_says():
    assert not about_of(make_policy("off-under-load,policy=via-sd", check_pool())).lossless
    assert about_of(OffUnderLoad(check_pool())).lossless


NOW_S = 100.0
ROUND_S = 0.5  # the draft's and the verification's


def window_of(policy, *, slack_s, num_running=16):
    """Of a request that begins its first round, whose next token is due after so many seconds; None: never."""
    seconds = [0.0, 0.1, 9.0, 9.0, 0.4]
    load = SimpleNamespace(num_running=num_running, duration_s=seconds, now_s=NOW_S)
    due_s = None if slack_s is None else NOW_S + slack_s
    step = policy.decide(SimpleNamespace(request_id="r", num_pending=0, last=None, load=load, deadline_s=due_s))
    return step.tokens if isinstance(step, Draft) else 0


@given(st.lists(st.floats(-9.0, 90.0), min_size=2, max_size=2), st.integers(8, 99), st.integers(1, 8))
def test_the_more_urgent_never_gets_the_shorter_window(slacks, num_running, start):
    policy = Slo(check_pool(), start=start)
    urgent, calm = (window_of(policy, slack_s=slack_s, num_running=num_running) for slack_s in sorted(slacks))
    assert urgent >= calm


def test_slack_takes_from_the_window_in_proportion():
    policy = Slo(check_pool(), start=8, margin=2.0)
    windows = [window_of(policy, slack_s=rounds * ROUND_S) for rounds in (-3.0, 0.0, 2.0, 4.0, 8.0, 16.0, 17.0)]
    assert windows == [8, 8, 8, 4, 2, 1, 0]


def test_nobody_gives_way_in_a_small_batch_or_without_a_deadline():
    policy = Slo(check_pool(), start=8, loaded=5)
    assert window_of(policy, slack_s=1e9, num_running=4) == 8
    assert window_of(policy, slack_s=1e9, num_running=5) == 0
    assert window_of(policy, slack_s=None, num_running=5) == 8


class Classed(Observation):
    """Requests of an even number are late, the others have all the time in the world."""

    __slots__ = ()

    @property
    def deadline_s(self):
        return 0.0 if int(self.request_id[1:]) % 2 == 0 else 1e6


def test_in_one_batch_the_late_draft_and_the_others_decode_alone():
    pool = check_pool()
    world = ToyWorld(pool)
    late, calm = Rounds(None), Rounds(None)
    policy = Slo(pool, loaded=8)
    late.policy = calm.policy = policy

    class Both:
        def decide(self, seen):
            return (late if seen.deadline_s == 0.0 else calm).decide(seen)

        def learn(self, outcome):
            policy.learn(outcome)

    ledger = RunLedger()
    loop = Loop(pool=pool, policy=Both(), name="slo", world=world, ledger=ledger, view=Classed)
    for number in range(12):
        ledger.note_admitted(f"r{number}", tag="a", num_prompt=3, arrived_at_s=0.0, now_s=0.0)
        session = Session(
            pool=pool,
            request_id=f"r{number}",
            tag="a",
            prompt=(1, 2, number),
            budget=30,
            eos=frozenset(),
            prefill_before=(True,) * 5,
        )
        loop.admit(session)
    now_s = 0.0
    while (op := loop.next_op(now_s)) is not None:
        results = op.run(world)
        loop.finish(op, results, start_s=now_s, now_s=now_s + results.duration_s)
        now_s += results.duration_s
    assert all(tokens > 0 for _, tokens in late.begun)
    assert all((tokens == 0) == (num_running >= 8) for num_running, tokens in calm.begun)
    assert {tokens > 0 for _, tokens in calm.begun} == {True, False}, "the late ones end first"


@pytest.mark.parametrize("text", ["goodput", "slo", "autotune", "off-under-load,at=4", "off-under-load,table=1:3/4:0"])
def test_nothing_of_a_finished_request_is_kept(text):
    tables = recording(0.7, requests=9, tokens=20)
    policy = make_policy(text, tables.pool)
    replayed(tables, compute_bound(), policy, batch=4)
    kept = pickle.dumps(policy)
    ids = [request.request_id.encode() for request in tables.trace.requests]
    assert len(ids) == 9
    assert not [one for one in ids if one in kept]


def prompts_of(tokens, *, requests=96, answer=48):
    spec = SyntheticSpec(
        requests=requests, tokens=answer, prompt_tokens=tokens, models=("draft", "target"), acceptance=(0.7,)
    )
    return TrieTables(make_trace(spec))
