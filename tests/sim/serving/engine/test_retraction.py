"""Retraction: the shortest answer goes first and waits last, and only prompts stay in the prefix cache."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.limits import Preemption
from paceline.traces.workloads.arrival import Arrival

from .plain_reference import preempted, serves_plainly
from .served_runs import POLICIES, LineCost, Run, limits, limits_of, pico, target_only, workloads


def retracting(found):
    return replace(found, preemption=Preemption.fewest_tokens)


@given(st.data())
def test_the_engine_equals_a_plain_one_that_looks_at_the_whole_batch(data):
    found = data.draw(limits(target_only(), prefix_cache=False))
    budget = max(found.token_budget, found.max_num_seqs)
    serves_plainly(data.draw(workloads(most=20)), retracting(replace(found, token_budget=budget)))


def test_the_shortest_answer_goes_and_waits_last():
    """`b` decodes beside `a`, which is longer out; `c` waits, and comes in before `b` comes again."""
    arrivals = [Arrival("a", 0, 4, 20), Arrival("b", 10**8, 4, 20), Arrival("c", 2 * 10**8, 8, 2)]
    tight = limits_of(target_only(), max_num_seqs=2, num_blocks=8, prefix_cache=False)
    by_policy = {}
    for preemption in Preemption:
        run = Run(arrivals, target_only(), "target", replace(tight, preemption=preemption)).go()
        by_policy[preemption] = run.times()
        assert {name for name, _ in preempted(run.log)} == {"b"}
    assert by_policy["fewest-tokens"]["c"][0] < by_policy["latest"]["c"][0]
    assert by_policy["fewest-tokens"]["c"][2] < by_policy["fewest-tokens"]["b"][2]


def test_of_equal_answers_the_longest_prompt_goes():
    arrivals = [Arrival("long", 0, 12, 20), Arrival("short", 0, 4, 20)]
    tight = limits_of(target_only(), num_blocks=9, prefix_cache=False)
    assert preempted(Run(arrivals, target_only(), "target", retracting(tight)).go().log)[0][0] == "long"
    assert preempted(Run(arrivals, target_only(), "target", tight).go().log)[0][0] == "short"


class Fed(LineCost):
    """Writes down how many tokens each forward is fed."""

    def __init__(self, tables):
        super().__init__(tables)
        self.fed = []

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        self.fed.append(new_tokens)
        return super().forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)


def test_a_retracted_request_finds_its_prompt_and_no_more():
    """Both prompts are 8 tokens; 4 of each answer are out when 24 blocks of a token are full, and `b` is put back."""
    arrivals = [Arrival("a", 0, 8, 6), Arrival("b", 0, 8, 12)]
    refed = {}
    for preemption in Preemption:
        cost = Fed(target_only())
        tight = limits_of(target_only(), num_blocks=24, block_tokens=1)
        run = Run(arrivals, target_only(), "target", replace(tight, preemption=preemption), cost=cost).go()
        assert [name for name, _ in preempted(run.log)] == ["b"]
        refed[preemption] = [new for new in cost.fed if new > 2][1:]
    assert refed["fewest-tokens"] == [4]  # the answer so far; the prompt is there
    assert refed["latest"] == []  # but for the last two tokens all is there


@given(st.data())
def test_retraction_changes_no_text_and_loses_nothing(data):
    tables = pico()
    arrivals, policy = data.draw(workloads(unit_tokens=8)), data.draw(st.sampled_from(POLICIES))
    ample = Run(arrivals, tables, policy, unit_tokens=8).go()
    short = limits_of(tables, num_blocks=25, token_budget=data.draw(st.integers(1, 48)))
    run = Run(arrivals, tables, policy, retracting(short), unit_tokens=8).go()
    assert run.outputs == ample.outputs
    assert all(not any(state) for state in run.recorder.latest.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_many_are_retracted(policy):
    arrivals = [Arrival(f"q{index}", index * 3 * 10**8, 20 + index % 9, 70) for index in range(14)]
    run = Run(arrivals, pico(), policy, retracting(limits_of(pico(), num_blocks=50, token_budget=32))).go()
    assert run.log.finished.all()
    assert len(run.log.preemptions["at_ps"]) > 0
