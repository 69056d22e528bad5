"""Requests that are walked one after another leave the same log as the loop does, to the bit, and the same errors."""

import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.decoding.steps import PolicyError
from paceline.policies import Draft, Verify
from paceline.policies.about import About
from paceline.policies.fixed import Chain
from paceline.policies.spec import make_policy
from paceline.sim import closed_loops
from paceline.sim.closed_loops import why_looped
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import CostModel, CostRangeError, DraftTerms
from paceline.sim.cost.make import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces import SyntheticSpec, make_trace

from ...pairs import pairs
from ..tries.small_traces import easy_cost, request_of, trace_of
from .recorded import contexts, logs, texts

SMALL = TrieTables(make_trace(SyntheticSpec(requests=5, tokens=30, prompt_tokens=3, models=("draft", "mid", "target"),
                                            acceptance=(0.6, 0.8), reach=6, run=3)))  # fmt: skip


@dataclass
class Terms(CostModel):
    """Seconds that grow with all that is asked, drafts by the round and by the token where wanted; no binary fractions.

    Beyond `most` tokens held it knows nothing.
    """

    per_round_s: float | None = None
    per_token_s: float | None = None
    most: int = 1 << 30
    name: str = "terms"
    lookup_s: float = 0.0017
    asked: set = field(default_factory=set)

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        if context_tokens > self.most:
            raise CostRangeError(f"{model} holds {context_tokens}")
        self.asked.add((model, num_rows, new_tokens, context_tokens))
        return 0.1 + len(model) / 7 + new_tokens / 31 + context_tokens / 1009

    def draft_terms(self, model):
        return None if self.per_round_s is None else DraftTerms(self.per_round_s, self.per_token_s)


def came_of(scenario, policy, **options):
    """(log, outputs) of a run, or its error in words."""
    outputs = {}
    try:
        return simulate(scenario, policy, "it", outputs=outputs, **options), outputs
    except Exception as error:  # noqa: BLE001 - whatever it is, both have to raise it
        return type(error), str(error)


def same(one, other):
    """Logs are equal to the bit, columns in type and order too; or errors are."""
    (log, outputs), (other_log, other_outputs) = one, other
    assert outputs == other_outputs
    if isinstance(log, type):
        assert log is other_log
        return
    assert log.meta == other_log.meta
    for part in ("ops", "steps", "requests"):
        columns, others = getattr(log, part), getattr(other_log, part)
        assert list(columns) == list(others)
        for name, column in columns.items():
            assert column.dtype == others[name].dtype, name
            assert column.tolist() == others[name].tolist() or column.tobytes() == others[name].tobytes(), name


def costs():
    seconds = st.floats(0, 1)
    # One that ends raises in some place of some request.
    return st.builds(Terms, st.none() | seconds, st.none() | seconds, st.just(1 << 30) | st.integers(0, 40))


@given(st.data())
def test_walked_requests_leave_the_log_of_the_loop(data):
    tables = data.draw(contexts())
    text = data.draw(texts(tables.pool))
    cost = data.draw(costs())
    scenario = Scenario(
        tables=tables,
        cost=cost,
        batch=data.draw(st.sampled_from([1, 1, 2, 3, 5])),
        seed=data.draw(st.integers(0, 9)),
        strict=data.draw(st.booleans()),
        decide_s=data.draw(st.none() | st.floats(0, 0.01)),
        start=data.draw(st.sampled_from([None, Start.draft])),
    )
    looped = came_of(scenario, make_policy(text, tables.pool), stepwise=True)
    asked, cost.asked = cost.asked, set()
    same(came_of(scenario, make_policy(text, tables.pool)), looped)
    assert cost.asked == asked


CHAINS = ("plain", "draft:4/target", "draft:3/mid:6/target", "svip", "draft:9/mid:2/target")


@pytest.mark.parametrize(("cost", "policy", "batch"), pairs(["cpu", "h100", "rtx4090"], CHAINS, [1, 4]))
def test_seconds_of_any_cost_are_those_of_the_loop(cost, policy, batch, monkeypatch):
    monkeypatch.setattr(closed_loops, "MOST_WAITING", 7)
    monkeypatch.setattr(closed_loops, "MOST_PRICED", 12)
    scenario = Scenario(tables=SMALL, cost=make_cost(cost, SMALL.trace), batch=batch)
    one, other = (came_of(scenario, make_policy(policy, SMALL.pool), stepwise=stepwise) for stepwise in (False, True))
    same(one, other)
    assert not isinstance(one[0], type)


def test_rounds_are_walked_and_nobody_is_asked_twice():
    asked = []

    class Counts(Chain):
        about = About(lossless=True, by_pending=True)

        def decide(self, seen):
            asked.append((seen.num_pending, seen.waiting("target"), seen.has_room))
            return super().decide(seen)

    log = simulate(Scenario(tables=SMALL, cost=easy_cost(SMALL.trace)), Counts(SMALL.pool, "draft:4/target"), "it")
    assert len(log.steps["kind"]) > 60
    # A draft that ends with an end-of-sequence token has no room either; here the budget alone leaves none.
    assert len(asked) == len(set(asked)) <= 6


def why(policy, tables=SMALL, cost=None):
    cost = easy_cost(tables.trace) if cost is None else cost
    world = tables.world(cost, seed=0, strict=False)
    return why_looped(make_policy(policy, tables.pool), policy, tables=tables, world=world, cost=cost)


@settings(max_examples=3)
@given(logs())
def test_a_run_that_needs_the_loop_says_why(log):
    assert not why("draft:4/target")
    assert why("adaptive") == "policy adaptive does not say that pending tokens alone decide"
    assert why("plain", log) == "recording by hand is not one of contexts"


class Watched(TrieTables):
    """Its world may answer otherwise."""

    def world(self, cost, **options):
        world = super().world(cost, **options)
        return type("Otherwise", (type(world),), {})(
            tables=self, pool=self.pool, cost=cost, fallback=None, now_s=options.get("now_s")
        )


def test_a_world_of_somebody_else_is_asked():
    assert why("plain", Watched(SMALL.trace)) == f"recording {SMALL.trace.about.name} is not one of contexts"


class Says:
    """A policy that says that pending tokens decide, and does what a test wants."""

    about = About(lossless=True, by_pending=True)

    def __init__(self, decide):
        self._decide = decide

    def decide(self, seen):
        return self._decide(seen)

    def learn(self, outcome):
        pass


def test_what_is_wrong_with_a_policy_names_its_request():
    views = {(): (5, 5), (5,): (6, 6), (5, 6): (7, 8), (5, 6, 8): (9, 9)}
    tables = TrieTables(trace_of(request_of(views, budget=3), request_of(views, request_id="r1", budget=3)))
    scenario = Scenario(tables=tables, cost=easy_cost(tables.trace))
    for decide, message in (
        (lambda seen: seen.tag and Verify("target"), "policy it, request r0, step None: decide raised .*not at tag"),
        (lambda seen: Draft("draft", 1), "no room to draft"),
        (lambda seen: 1 / seen.num_pending, "decide raised ZeroDivisionError"),
        (lambda seen: Verify("draft"), "request r0, .*no progress|nothing left"),
    ):
        with pytest.raises(PolicyError, match=message):
            simulate(scenario, Says(decide), "it")


def test_an_answer_that_is_not_recorded_to_its_end_is_for_the_loop():
    views = {(): (5, 5), (5,): (6, 6), (5, 6): (7, 8), (5, 6, 8): (9, 9)}
    tables = TrieTables(trace_of(request_of(views, budget=6)))
    scenario = Scenario(tables=tables, cost=easy_cost(tables.trace))
    one, other = (
        came_of(scenario, make_policy("draft:2/target", tables.pool), stepwise=stepwise) for stepwise in (False, True)
    )
    same(one, other)
    assert one[0].requests["divergent_tokens"].tolist() == [3]


def test_a_cost_that_does_not_know_an_operation_says_so_as_in_the_loop():
    cost = Terms(most=20)
    with pytest.raises(CostRangeError, match=re.escape("holds 2")):
        simulate(Scenario(tables=SMALL, cost=cost), make_policy("draft:4/target", SMALL.pool), "it")
