"""A run that was counted once takes at every cost what it takes when it is simulated there."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.laboratory.arena.ladders import ladders
from paceline.laboratory.arena.statics import ForwardKinds, UnitCost
from paceline.policies.spec import make_policy
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.files import CostGrid, CostLine, DrafterFigures, FileCost
from paceline.sim.cost.make import make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.contexts.store import read_trace
from paceline.traces.meta import CostTable

from ....sim.fixed.recorded import contexts, logs, texts

SECONDS = st.floats(1e-6, 1e3)
LINES = st.builds(CostLine, intercept_s=SECONDS, per_new_token_s=SECONDS, per_kv_token_s=SECONDS)
FORWARDS = st.one_of(
    LINES,
    st.builds(lambda one, other: CostTable(new_tokens=(1, 7), seconds=(one, other)), SECONDS, SECONDS),
    st.builds(
        lambda a, b, c: CostGrid(new_tokens=(1, 5), context_tokens=(0, 20), seconds=((a, b), (b, c))),
        SECONDS,
        SECONDS,
        SECONDS,
    ),
)
DRAFTERS = st.one_of(
    FORWARDS,
    st.builds(
        lambda terms, known: DrafterFigures(terms=terms, forwards=known),
        st.builds(DraftTerms, SECONDS, st.none() | SECONDS, st.none()),
        FORWARDS,
    ),
)


@st.composite
def costs(draw, pool):
    figures = {member.name: draw(DRAFTERS) for member in pool.members[:-1]}
    cost = FileCost("drawn", figures | {pool.target: draw(FORWARDS)}, extrapolate=True)
    cost.lookup_s = draw(SECONDS)
    return cost


def replayed(tables, cost, text, batch=1):
    return simulate(Scenario(tables=tables, cost=cost, batch=batch), make_policy(text, tables.pool), text)


@given(contexts() | logs(), st.data())
def test_counted_forwards_cost_what_the_simulated_run_takes(tables, data):
    kinds = ForwardKinds(tables.pool)
    text = data.draw(texts(tables.pool, stops=False))
    run = kinds.count(replayed(tables, UnitCost(), text))
    for _ in range(2):
        cost = data.draw(costs(tables.pool))
        log = replayed(tables, cost, text)
        assert run.tokens == log.requests["emitted_tokens"].sum()
        assert kinds.seconds(run, cost) == pytest.approx(log.ops["duration_s"].sum(), rel=1e-9)


@pytest.mark.parametrize("text", ["plain", "draft:16/target", "ngram:6/draft:3/mid:7/target", "slim:2/target"])
def test_the_shipped_recording_at_the_ladders(text):
    trace = read_trace(shipped("recordings", "pico.trace"))
    tables = TrieTables(trace)
    kinds = ForwardKinds(tables.pool)
    other = kinds.count(replayed(tables, UnitCost(), "mid:3/target"))
    run = kinds.count(replayed(tables, UnitCost(), text))
    for cost in (make_cost("h100", trace), *(one.cost(trace) for one in ladders().values())):
        kinds.seconds(other, cost)
        end_s = replayed(tables, cost, text).requests["finished_at_s"].max()
        assert kinds.seconds(run, cost) == pytest.approx(end_s, rel=1e-9)


def test_a_batch_cannot_be_counted():
    trace = read_trace(shipped("recordings", "pico.trace"))
    tables = TrieTables(trace)
    with pytest.raises(ValueError, match="one request at a time"):
        ForwardKinds(tables.pool).count(replayed(tables, UnitCost(), "plain", batch=2))


def test_a_cost_of_whole_operations_is_refused():
    class WithOperations(UnitCost):
        knows_operations = True

    tables = TrieTables(read_trace(shipped("recordings", "pico.trace")))
    kinds = ForwardKinds(tables.pool)
    run = kinds.count(replayed(tables, UnitCost(), "plain"))
    assert kinds.seconds(run, UnitCost()) == run.repeats.sum() == np.sum(run.tokens)
    with pytest.raises(ValueError, match="more of operations"):
        kinds.seconds(run, WithOperations())
