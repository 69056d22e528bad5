"""Policies that see load in a served run: what they see is what ran, and whatever comes, their requests end."""

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies import Draft, make_policy
from paceline.sim.serving.requests import Deadline
from paceline.traces.workloads.arrival import Arrival

from .served_runs import MICROSECOND, LineCost, Run, limits, limits_of, pico, workloads

POLICIES = ("goodput", "slo,loaded=1", "autotune,trial=1", "off-under-load,at=3", "off-under-load,table=1:5/2:0/4:2")


class Sees:
    """Passes on to a policy, and keeps what `look` makes of what is seen, and the step."""

    def __init__(self, policy, look):
        self.policy, self.look = policy, look
        self.seen = []

    def decide(self, seen):
        looked = self.look(seen)
        step = self.policy.decide(seen)
        self.seen.append((looked, step))
        return step

    def learn(self, outcome):
        self.policy.learn(outcome)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12)
@given(data=st.data())
def test_all_that_come_end(policy, data):
    run = Run(data.draw(workloads()), pico(), policy, data.draw(limits(pico()))).go()
    requests = run.log.requests
    assert (run.log.finished | (requests["rejected"] != "")).all()
    finished = run.log.finished
    assert (requests["emitted_tokens"][finished] == requests["output_tokens"][finished]).all()


@pytest.mark.parametrize(("name", "max_num_seqs"), [("target", 8), ("draft", 1)])
def test_the_load_tells_what_ran_chunks_and_catch_up_among_it(name, max_num_seqs):
    """Where a forward takes so much for its rows and new tokens, the load's seconds are those of the load's counts."""
    tables = pico()
    level = tables.pool.names.index(name)
    cost = LineCost(tables, each=0, context=0)
    policy = Sees(
        make_policy("draft:3/target", tables.pool),
        lambda seen: [(seen.load.batch[level], seen.load.new_tokens[level], seen.load.num_forwards[level]),
                      seen.load.duration_s[level]],
    )  # fmt: skip
    arrivals = [Arrival(f"q{index}", 40 * index * MICROSECOND, 30 + index, 30) for index in range(12)]
    asked = limits_of(tables, max_num_seqs=max_num_seqs, token_budget=16)
    Run(arrivals, tables, lambda: policy, asked, cost=cost).go()
    wider = 0
    for ((num_rows, new_tokens, num_forwards), duration_s), _ in policy.seen:
        assert name == "draft" or num_forwards == 1
        told = cost.forward_s(name, num_rows=num_rows * num_forwards, new_tokens=new_tokens, context_tokens=0)
        assert duration_s == pytest.approx(told, rel=1e-6)
        wider += new_tokens > 4 * num_rows
    assert wider > 0, "chunks ran beside verifications, and before drafts"


def test_a_class_that_is_late_drafts_more_than_one_that_has_time():
    tables = pico()
    policy = Sees(
        make_policy("slo,loaded=4,start=8,down=0", tables.pool), lambda seen: (seen.slo, seen.load.num_running)
    )
    arrivals = [Arrival(f"q{index}", 0, 10, 60, slo="chat" if index % 2 else "batch") for index in range(12)]
    deadlines = {"chat": Deadline(0.0, 1e-9), "batch": Deadline(9.0, 9.0)}
    Run(arrivals, tables, lambda: policy, limits_of(tables, max_num_seqs=12), deadlines=deadlines).go()
    begun = {"chat": [], "batch": []}
    for (name, num_running), step in policy.seen:
        if num_running >= 4:
            begun[name].append(step.tokens if isinstance(step, Draft) else 0)
    assert mean(begun["chat"]) > 2
    assert not any(begun["batch"])
