"""The prefill in replay: what it costs, when the first token is there, and what is drafted after it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY
from paceline.decoding.seen import Start
from paceline.policies import Draft, Verify, make_policy
from paceline.reports.summary import summarise_run
from paceline.sim.contexts import TrieTables
from paceline.sim.recorded import recorded_pool
from paceline.sim.simulate import Scenario
from paceline.traces import SyntheticSpec, make_trace

from ..strategies import synthetic_traces
from ..unit_cost import UnitCost
from .tries.small_traces import Anything, Script, easy_cost, replay, table, trunk_of

STEP = ("kind", "level", "drafted", "judged", "own", "emitted", "prefill")
TRACE = make_trace(SyntheticSpec(requests=3, tokens=12, prompt_tokens=7, models=("draft", "target"), acceptance=(0.8,)))


def test_the_first_operation_reads_the_prompt_and_writes_a_token():
    log, outputs = replay(TRACE, Script(recorded_pool(TRACE), [Draft("draft", 2), Verify("target")]), strict=True)
    assert table(log, "steps", *STEP)[:2] == [(VERIFY, 1, 0, 0, 1, 1, 1), (DRAFT, 0, 2, 0, 0, 0, 0)]
    fed = table(log, "ops", "kind", "level", "num_forwards", "new_tokens")[:3]
    assert fed[0] == (VERIFY, 1, 1, 7), "the prompt"
    assert fed[1] == (DRAFT, 0, 2, 8 + 1), "the prompt and the first token, then a token"
    assert fed[2][:2] == (VERIFY, 1)
    assert fed[2][3] == 3, "the first token and the drafts; the prompt is held"
    prefill_s = easy_cost(TRACE).forward_s("target", num_rows=1, new_tokens=7, context_tokens=0)
    assert log.requests["first_token_at_s"][0] == log.ops["duration_s"][0] == prefill_s
    assert outputs == trunk_of(TRACE)


def test_the_first_token_comes_as_early_under_any_chain():
    pool = recorded_pool(TRACE)
    first = {
        name: replay(TRACE, make_policy(name, pool))[0].requests["first_token_at_s"][0]
        for name in ("plain", "draft:1/target", "draft:8/target")
    }
    assert len(set(first.values())) == 1
    late, _ = replay(TRACE, make_policy("draft:8/target", pool), start=Start.draft)
    assert late.requests["first_token_at_s"][0] > first["plain"]


@given(trace=synthetic_traces(max_models=3), seed=st.integers(0, 99), batch=st.integers(1, 3))
def test_either_start_commits_the_trunk_and_costs_one_call_apart(trace, seed, batch):
    pool = recorded_pool(trace)
    for start in (Start.prefill, Start.draft):
        log, outputs = replay(trace, Anything(pool, seed), batch=batch, start=start)
        assert outputs == trunk_of(trace)
        by_target = (log.steps["kind"] == VERIFY) & (log.steps["level"] == pool.target_level)
        prefills = int(log.steps["prefill"].sum())
        assert prefills == (len(trace.requests) if start is Start.prefill else 0)
        assert by_target.sum() == prefills + len(log.rounds()["round"])
        assert not (log.steps["prefill"][~by_target]).any()
        summary = summarise_run(log)
        rounds = len(log.rounds()["round"])
        assert summary.acceptance_length == pytest.approx(
            (summary.output_tokens - prefills) / rounds if rounds else 0.0
        )
        assert summary.target_calls_per_token == pytest.approx((rounds + prefills) / summary.output_tokens)


def test_plain_decoding_is_the_same_from_either_start():
    pool = recorded_pool(TRACE)
    logs = [replay(TRACE, make_policy("plain", pool), start=start)[0] for start in (Start.prefill, Start.draft)]
    assert table(logs[0], "ops", "kind", "new_tokens", "start_s", "duration_s") == table(
        logs[1], "ops", "kind", "new_tokens", "start_s", "duration_s"
    )
    assert [summarise_run(log).acceptance_length for log in logs] == [1.0, 1.0]


def test_a_start_that_a_recording_does_not_hold_is_told_before_anything_runs():
    with pytest.raises(ValueError, match=r"`start` must be prefill or draft for recording .*, which holds no start"):
        Scenario(tables=TrieTables(TRACE), cost=UnitCost(), start=Start.recorded)
