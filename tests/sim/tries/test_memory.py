"""Memory of a replay follows the requests that run, not those of the recording."""

import tracemalloc

import pytest
from paceline.policies.spec import make_policy
from paceline.sim import Scenario, TrieTables, simulate
from paceline.sim import context_tables as request_tables
from paceline.traces import SyntheticSpec, make_trace, read_trace, write_trace
from paceline.traces.contexts import store as stored_requests

from ...unit_cost import UnitCost

FEW, MANY = 50, 400


@pytest.fixture
def small_limits(monkeypatch):
    """What is kept besides is for thousands of contexts: here for those of a few requests."""
    monkeypatch.setattr(stored_requests, "BATCH_NODES", 500)
    monkeypatch.setattr(stored_requests, "MOST_KEPT_NODES", 1_000)
    monkeypatch.setattr(request_tables, "MOST_KEPT_NODES", 1_000)


def stored(folder, requests):
    path = folder / f"{requests}.trace"
    models = ("draft", "mid", "target")
    write_trace(make_trace(SyntheticSpec(requests=requests, tokens=40, models=models, acceptance=(0.7, 0.8))), path)
    return path


def peak_bytes(path, policy, batch):
    tracemalloc.start()
    try:
        tables = TrieTables(read_trace(path))
        simulate(Scenario(tables=tables, cost=UnitCost(), batch=batch), make_policy(policy, tables.pool), policy)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("policy", "batch"), [("draft:4/target", 1), ("draft:3/mid:6/target", 4)])
def test_peak_memory_does_not_grow_with_the_recording(tmp_path, small_limits, policy, batch):
    few, many = stored(tmp_path, FEW), stored(tmp_path, MANY)
    peak_bytes(few, policy, batch)  # what is made once for all runs
    grown = peak_bytes(many, policy, batch) - peak_bytes(few, policy, batch)
    # What grows is the run's own log and a line of each request; one request as it was read takes 20 times as much.
    assert grown / (MANY - FEW) < 10_000


def test_tables_are_shared_as_long_as_somebody_holds_them(small_limits):
    tables = TrieTables(make_trace(SyntheticSpec(requests=40, tokens=40)))
    first = tables.of("synthetic-0")
    for place in range(40):
        tables.of(f"synthetic-{place}")
    assert tables.of("synthetic-0") is first
    with pytest.raises(KeyError):
        tables.of("nobody")
