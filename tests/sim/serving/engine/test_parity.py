"""Without contention a served request takes the seconds that replay gives it."""

import pytest
from paceline.policies.by_name import make_policy
from paceline.sim import Scenario, make_cost, simulate
from paceline.sim.cost.base import DraftTerms
from paceline.sim.serving.requests import DrawnRequests
from paceline.traces.profile import DecideSeconds
from paceline.traces.workloads.arrival import PS_PER_S, Arrival

from .served_runs import LineCost, Run, drawn_as, limits_of, pico, whole_answers

FAR = 1000 * PS_PER_S
# `specrouter` looks at seconds, which differ in their last digits here.
POLICIES = ("target", "draft:4/target", "draft:3/mid:6/target", "ngram:4/target", "adaptive", "confident")
COUNT = 8


def replayed(tables, policy, cost, batch):
    """Seconds and texts of requests that all come at once, in a closed loop."""
    outputs = {}
    scenario = Scenario(tables=tables, cost=cost, batch=batch)
    log = simulate(scenario, make_policy(policy, tables.pool), policy, outputs=outputs)
    took = log.requests["finished_at_s"] - log.requests["admitted_at_s"]
    return dict(zip(log.requests["request_id"].tolist(), took.tolist(), strict=True)), outputs


def served(tables, policy, cost, gap_ps, texts):
    """Seconds and texts of the same requests, by their ids in the recording."""
    drawn = DrawnRequests(tables.trace.requests, seed=0)
    names = {drawn_as(drawn, request.request_id): request for request in tables.trace.requests}
    arrivals = [
        Arrival(name, index * gap_ps, len(request.prompt), len(texts[request.request_id]))
        for index, (name, request) in enumerate(names.items())
    ]
    limits = limits_of(tables, max_num_seqs=COUNT, token_budget=10**6)
    run = Run(arrivals, tables, policy, limits, cost=cost).go()
    requests = run.log.requests
    took = (requests["ended_at_ps"] - requests["arrived_at_ps"]) / PS_PER_S
    ids = [names[name].request_id for name in requests["request_id"].tolist()]
    return dict(zip(ids, took.tolist(), strict=True)), {names[name].request_id: run.outputs[name] for name in names}


def check(policy, cost, batch, rel=1e-9):
    tables = whole_answers(pico(), COUNT)
    seconds, texts = replayed(tables, policy, cost, batch)
    found, found_texts = served(tables, policy, cost, 0 if batch > 1 else FAR, texts)
    assert found_texts == texts
    assert found == pytest.approx(seconds, rel=rel)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cost", ["line", "h100"])
def test_a_lone_request_takes_what_replay_says(policy, cost):
    if cost == "line":
        check(policy, LineCost(pico()), 1)
    else:  # forwards of a tiny model, each rounded to a picosecond
        check(policy, make_cost(cost, pico().trace), 1, rel=1e-7)


class StopsCost(LineCost):
    """Where a stop reads the probabilities of a draft, that takes a millisecond a token."""

    def draft_terms(self, model):
        return DraftTerms(0.0, None, stop_s=1e-3) if model == "draft" else None


@pytest.mark.parametrize("batch", [1, COUNT])
@pytest.mark.parametrize("policy", ["confident", "draft:4/target"])
def test_stops_are_charged_alike(policy, batch):
    check(policy, StopsCost(pico()), batch)


class ThinkingCost(LineCost):
    """Where a policy works something out once for all that run, and a little for each."""

    def decide_s(self, policy):
        return DecideSeconds(batches=(1, 2, COUNT), seconds=(3e-3, 4e-3, 10e-3))


@pytest.mark.parametrize("batch", [1, COUNT])
@pytest.mark.parametrize("policy", ["target", "draft:3/mid:6/target", "adaptive"])
def test_thinking_is_charged_alike_by_how_many_run(policy, batch):
    check(policy, ThinkingCost(pico()), batch)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_come_at_once_take_what_a_closed_loop_says(policy):
    check(policy, LineCost(pico()), COUNT)
