"""Replay of contexts: the trunk whatever is done, where texts and recordings end, and memory."""

import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import Draft, PolicyError, Verify, make_policy
from paceline.reports import summarise_run
from paceline.sim import Scenario, TrieTables, context_tables, in_step, simulate
from paceline.sim.contexts_answers import Fallback
from paceline.sim.recorded import UnrecordedContextError, recorded_pool
from paceline.traces import SyntheticSpec, make_trace, read_trace, write_trace
from paceline.traces.contexts import on_disk as store

from ...strategies import synthetic_traces, traces
from ...unit_cost import UnitCost
from .small_traces import (
    THREE,
    Anything,
    Script,
    replay,
    replay_bare,
    request_of,
    table,
    trace_of,
    trunk_of,
    with_ngram,
)

STEP = ("request", "kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted", "modelled")


@given(trace=traces() | synthetic_traces(), seed=st.integers(0, 99), batch=st.integers(1, 4))
def test_any_trie_replays_its_trunk_and_ends(trace, seed, batch):
    log, outputs = replay(trace, Anything(recorded_pool(trace), seed), batch=batch)
    for record, (request_id, trunk) in zip(trace.requests, trunk_of(trace).items(), strict=True):
        assert outputs[request_id][: len(trunk)] == trunk
        assert len(outputs[request_id]) == record.max_new_tokens
    assert sum(map(len, outputs.values())) == log.steps["emitted"].sum()
    if trace.meta.kind == "synthetic" and outputs == trunk_of(trace):
        assert not log.requests["divergent_tokens"].any()
        assert not log.requests["reanchored"].any()


@given(trace=synthetic_traces(max_models=3), policy=st.sampled_from(["adaptive", "confident", "ngram", "anything"]))
def test_a_batch_changes_the_order_never_the_steps(trace, policy):
    trace = with_ngram(trace)
    pool = recorded_pool(trace)

    def run(batch):
        decider = Anything(pool, 1) if policy == "anything" else make_policy(policy, pool)
        log, outputs = replay(trace, decider, batch=batch)
        return outputs, sorted(table(log, "steps", *STEP), key=lambda row: row[0])

    outputs, steps = run(1)
    for batch in (2, 5):
        assert run(batch) == (outputs, steps)


def test_a_batch_interleaves_requests():
    trace = make_trace(SyntheticSpec(requests=3, tokens=8))
    pool = recorded_pool(trace)
    alone, _ = replay(trace, make_policy("draft:2/target", pool), batch=1)
    together, _ = replay(trace, make_policy("draft:2/target", pool), batch=3)
    assert alone.steps["request"].tolist() == sorted(alone.steps["request"].tolist())
    assert together.steps["request"][:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert together.ops["num_rows"][:2].tolist() == [3, 3]
    assert alone.requests["admitted_at_s"].tolist()[1:] == alone.requests["finished_at_s"].tolist()[:-1]
    assert together.requests["admitted_at_s"].tolist() == [0.0, 0.0, 0.0]


EOS = 63
ENDS = ("kind", "level", "asked", "drafted", "judged", "accepted", "own", "emitted")
# Draft, mid and target. The trunk is 10 11 12 end; the draft model would end the text after 10.
VIEWS = {
    (): (10, 10, 10),
    (10,): (EOS, 11, 11),
    (10, EOS): (1, 1, 1),
    (10, 11): (12, 12, 12),
    (10, 11, 12): (EOS, EOS, EOS),
    (10, 11, 12, EOS): (5, 5, 5),
}
CHAINS = ("target", "draft:1/target", "draft:4/target", "mid:9/target", "draft:2/mid:3/target", "draft:9/mid:9/target")


def ending(budget=8, requests=1):
    records = (request_of(VIEWS, request_id=f"r{index}", budget=budget) for index in range(requests))
    return trace_of(*records, models=THREE, eos=EOS)


@pytest.mark.parametrize("chain", CHAINS)
def test_a_text_ends_with_its_last_token_or_at_its_budget(chain):
    for budget, batch in ((8, 1), (8, 3), *((budget, 1) for budget in range(1, 6))):
        trace = ending(budget, requests=3)
        log, outputs = replay_bare(trace, make_policy(chain, recorded_pool(trace)), strict=True, batch=batch)
        assert list(outputs.values()) == [[10, 11, 12, EOS][:budget]] * 3
        assert not log.requests["divergent_tokens"].any()
        assert log.requests["emitted_tokens"].tolist() == [min(4, budget)] * 3


TO_TARGET = Verify("target")


@pytest.mark.parametrize(
    ("budget", "steps", "taken"),
    [
        (
            8,
            [Draft("draft", 6), TO_TARGET, Draft("draft", 6), TO_TARGET],
            [
                (DRAFT, 0, 6, 2, 0, 0, 0, 0),  # 10 end: nothing is drafted after an end
                (VERIFY, 2, 0, 0, 2, 1, 1, 2),  # the target writes 11 where the draft ended
                (DRAFT, 0, 6, 2, 0, 0, 0, 0),  # 12 end
                (VERIFY, 2, 0, 0, 2, 2, 0, 2),  # no token of its own after the end
            ],
        ),
        (
            8,
            [Draft("mid", 2), Draft("draft", 1), Verify("mid"), TO_TARGET],
            [
                (DRAFT, 1, 2, 2, 0, 0, 0, 0),
                (DRAFT, 0, 1, 1, 0, 0, 0, 0),
                (VERIFY, 1, 0, 0, 1, 1, 1, 0),  # accepts 12, writes the end
                (VERIFY, 2, 0, 0, 4, 4, 0, 4),
            ],
        ),
        (1, [Draft("draft", 4), TO_TARGET], [(DRAFT, 0, 4, 1, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 1, 1, 0, 1)]),
        (1, [], [(VERIFY, 2, 0, 0, 0, 0, 1, 1)]),
        # The draft fills the budget; what the target refuses makes room for its own token.
        (2, [Draft("draft", 4), TO_TARGET], [(DRAFT, 0, 4, 2, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 2, 1, 1, 2)]),
    ],
)
def test_what_is_written_where_a_text_ends(budget, steps, taken):
    trace = ending(budget)
    log, outputs = replay_bare(trace, Script(recorded_pool(trace), steps), strict=True)
    assert table(log, "steps", *ENDS) == taken
    assert outputs == {"r0": [10, 11, 12, EOS][:budget]}


def test_the_end_may_be_looked_up():
    views = {(): (7, 10), (10,): (7, EOS), (10, EOS): (7, 7)}
    trace = trace_of(request_of(views, prompt=(4, 10, EOS, 5, 4)), eos=EOS, ngram=True)
    log, outputs = replay_bare(trace, Script(recorded_pool(trace), [Draft("ngram", 4), TO_TARGET]), strict=True)
    assert outputs == {"r0": [10, EOS]}
    assert table(log, "steps", *ENDS) == [(DRAFT, 0, 4, 2, 0, 0, 0, 0), (VERIFY, 2, 0, 0, 2, 2, 0, 2)]


CHAIN = "draft:4/mid:6/target"


def three_levels(reach, run):
    spec = {"requests": 12, "tokens": 60, "models": THREE, "acceptance": (0.6, 0.8)}
    return make_trace(SyntheticSpec(**spec, reach=reach, run=run))


def exact_share(trace, chain, **scenario):
    log, outputs = replay_bare(trace, make_policy(chain, recorded_pool(trace)), **scenario)
    assert outputs == trunk_of(trace)
    return summarise_run(log).exact_share


@pytest.mark.parametrize(
    ("chain", "reach", "run", "within"),
    [
        ("draft:4/target", 3, 0, True),  # a draft of 4 asks at most 3 tokens off the trunk what comes next
        ("mid:4/target", 3, 0, True),
        ("draft:4/mid:1/target", 5, 4, True),
        (CHAIN, 5 + 5, 4, True),  # at most 5 kept by mid when it drafts 4 more and adds its own
        ("draft:4/target", 2, 0, False),
        (CHAIN, 6, 4, False),
        (CHAIN, 10, 2, False),
    ],
)
def test_within_its_reach_a_recording_answers_everything_and_beyond_it_counts(chain, reach, run, within):
    trace = three_levels(reach, run)
    if within:
        assert exact_share(trace, chain, strict=True) == 1.0
        return
    assert 0.5 < exact_share(trace, chain) < 1.0
    told = r"request synthetic-\d+: (draft|verify) at output position \d+ needs"
    with pytest.raises(UnrecordedContextError, match=told):
        exact_share(trace, chain, strict=True)


FEW_VIEWS = {(): (20, 30, 10), (10,): (11, 11, 11), (10, 11): (1, 1, 1), (20,): (21, 22, 23), (20, 21): (24, 24, 24)}


def test_every_modelled_decision_is_counted():
    trace = trace_of(request_of(FEW_VIEWS, budget=6), models=THREE)
    steps = [Draft("draft", 5), Verify("mid"), TO_TARGET]
    log, outputs = replay_bare(trace, Script(recorded_pool(trace), steps))
    names = ("drafted", "judged", "accepted", "own", "emitted", "modelled")
    assert table(log, "steps", *names)[:3] == [
        (5, 0, 0, 0, 0, 2),  # 20 21 24, and two tokens nobody knows
        (0, 5, 0, 1, 0, 0),  # mid writes 30 where draft wrote 20: recorded
        (0, 1, 0, 1, 1, 0),  # the target writes 10
    ]
    assert outputs["r0"][:2] == [10, 11]
    steps = [Draft("mid", 2), Draft("draft", 2), Verify("mid"), TO_TARGET]
    log, _ = replay_bare(trace, Script(recorded_pool(trace), steps))
    drafted, again, verdict, target = table(log, "steps", *names)[:4]
    assert (drafted, again) == ((2, 0, 0, 0, 0, 1), (2, 0, 0, 0, 0, 2))  # 30, and one after it
    accepted = verdict[2]
    assert verdict == (0, 2, accepted, 1, 0, min(accepted + 1, 2) + 1)
    assert target[2:] == (0, 1, 1, 0)  # refused at the first token, which is recorded


def test_an_unknown_token_has_no_signal():
    seen = []

    class Looking(Script):
        def decide(self, view):
            seen.append([(token.token, token.drafter, token.judge, token.signal) for token in view.pending])
            return super().decide(view)

    trace = trace_of(request_of(FEW_VIEWS, budget=4), models=THREE)
    replay_bare(trace, Looking(recorded_pool(trace), [Draft("draft", 4), TO_TARGET]))
    tokens = seen[1]
    assert [token[:3] for token in tokens] == [(value, "draft", "draft") for value in (20, 21, 24, -1)]
    assert [tuple(token[3]) for token in tokens[:3]] == [(np.exp(-0.5), 1.0, 0.25)] * 3
    assert np.isnan(tokens[3][3]).all()


def test_two_policies_meet_the_same_luck():
    trace = three_levels(4, 2)
    pool = recorded_pool(trace)
    columns = ("request", "kind", "level", "drafted", "judged", "accepted", "modelled")

    def run(chain, **scenario):
        log, _ = replay_bare(trace, make_policy(chain, pool), **scenario)
        return sorted(table(log, "steps", *columns), key=lambda row: row[0])

    alone = run(CHAIN)
    run("draft:8/mid:2/target")
    assert run(CHAIN) == alone == run(CHAIN, batch=5) != run(CHAIN, seed=1)


def test_errors_of_a_run_survive_the_clock():
    trace = three_levels(4, 2)
    with pytest.raises(PolicyError) as caught:
        replay_bare(trace, Script(recorded_pool(trace), [Draft("target", 1)]), name="mine")
    error = caught.value
    assert (error.policy, error.request_id, error.step) == ("mine", "synthetic-0", Draft("target", 1))
    assert str(error).startswith("policy mine, request synthetic-0, step Draft(model='target', tokens=1, stop=None): ")
    for option, value in (("batch", 0), ("batch", -1), ("decide_s", -1e-9), ("decide_s", np.inf)):
        with pytest.raises(ValueError, match=f"{option}`? must be "):
            replay_bare(trace, make_policy("plain", recorded_pool(trace)), **{option: value})


PAIRS = ((0, 1), (0, 2), (1, 2))
FITTED = make_trace(
    SyntheticSpec(requests=20, tokens=60, models=THREE, acceptance=(0.6, 0.8), off_trunk=(0.5, 0.7), depth_decay=0.1)
)


def test_draws_can_be_repeated_in_any_order_and_another_seed_is_other_luck():
    asked = [(f"r{index % 7}", index // 7, *pair) for index in range(300) for pair in PAIRS]
    one, other, third = (Fallback(FITTED, seed=seed) for seed in (4, 4, 5))
    forwards = {key: one.accepts(*key) for key in asked}
    shuffled = Random(1).sample(asked, len(asked))
    assert {key: other.accepts(*key) for key in shuffled} == forwards
    assert {key: one.accepts(*key) for key in shuffled} == forwards != {key: third.accepts(*key) for key in asked}


@pytest.mark.parametrize(
    ("views", "budget", "rate"),
    [
        (  # of contexts 0, 1, 2 and 3 tokens off the trunk, the outer half are those with 2 and 3
            {
                (): (5, 9),
                (9,): (9, 9),
                (5,): (6, 6),  # distance 1
                (5, 6): (7, 8),  # distance 2
                (5, 6, 7): (8, 8),  # distance 3
                (5, 6, 7, 8): (1, 2),  # distance 4
                (5, 6, 8): (3, 4),  # distance 3
            },
            8,
            1 / 3,  # 3, 3 and 4 tokens off
        ),
        ({(): (5, 9), (9,): (9, 9), (9, 9): (1, 1), (9, 9, 1): (2, 1)}, 3, 2 / 4),  # nothing off the trunk
    ],
)
def test_rates_are_those_far_from_the_trunk(views, budget, rate):
    assert Fallback(trace_of(request_of(views, budget=budget))).rates[0, 1] == rate


FEW, MANY = 50, 400


@pytest.fixture
def small_limits(monkeypatch):
    """What is kept besides is for thousands of contexts: here for those of a few requests."""
    monkeypatch.setattr(store, "BATCH_NODES", 500)
    monkeypatch.setattr(store, "MOST_KEPT_NODES", 1_000)
    monkeypatch.setattr(context_tables, "MOST_KEPT_NODES", 1_000)
    monkeypatch.setattr(in_step, "MOST_NOTED", 500)


def stored(folder, requests):
    path = folder / f"{requests}.trace"
    write_trace(make_trace(SyntheticSpec(requests=requests, tokens=40, models=THREE, acceptance=(0.7, 0.8))), path)
    return path


def peak_bytes(path, policy="draft:3/mid:6/target"):
    tracemalloc.start()
    try:
        tables = TrieTables(read_trace(path))
        simulate(Scenario(tables=tables, cost=UnitCost(), batch=4), make_policy(policy, tables.pool), policy)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_recording(tmp_path, small_limits):
    few, many = stored(tmp_path, FEW), stored(tmp_path, MANY)
    peak_bytes(few)  # what is made once for all runs
    # What grows is the run's own log, its steps and a line of each request; one request as read takes 8 times as much.
    assert (peak_bytes(many) - peak_bytes(few)) / (MANY - FEW) < 15_000


def test_tables_are_shared_as_long_as_somebody_holds_them(small_limits):
    tables = TrieTables(make_trace(SyntheticSpec(requests=40, tokens=40)))
    first = tables.of("synthetic-0")
    for place in range(40):
        tables.of(f"synthetic-{place}")
    assert tables.of("synthetic-0") is first
    with pytest.raises(KeyError):
        tables.of("nobody")


def test_draws_are_made_at_the_fitted_rate():
    fallback, count = Fallback(FITTED, seed=0), 10_000
    for pair in PAIRS:
        accepted = sum(fallback.accepts(f"r{index % 50}", index // 50, *pair) for index in range(count))
        rate = fallback.rates[pair]
        assert 0.01 < rate < 0.99
        assert abs(accepted / count - rate) < 4 * np.sqrt(rate * (1 - rate) / count)
    assert np.diag(fallback.rates).tolist() == [1.0, 1.0, 1.0]
    assert (fallback.rates == fallback.rates.T).all()
