"""Replays of real logs against what was measured: steps of Spec-Bench answers, seconds of EAGLE-3 on an H100."""

import numpy as np
import pytest
from paceline.policies import make_policy
from paceline.reports import summarise_run
from paceline.sim.cost.measured import TimedCost
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.importers import read_recording

from ...data_folder import data_files
from ...unit_cost import UnitCost

SPEC_BENCH = data_files("specbench_yukiki", "*.jsonl.gz")
EAGLE_TIMED = data_files("hsd_eagle3_h100", "h100_*.jsonl.gz")
WARM_UP = 2  # requests in which the machine warmed up

needs_spec_bench = pytest.mark.skipif(not SPEC_BENCH, reason="PACELINE_DATA has no specbench_yukiki")
needs_eagle_timed = pytest.mark.skipif(not EAGLE_TIMED, reason="PACELINE_DATA has no hsd_eagle3_h100")


@pytest.fixture(scope="module")
def spec_bench():
    return read_recording("spec-bench", SPEC_BENCH)


@pytest.fixture(scope="module")
def eagle_timed():
    return read_recording("eagle-timed", EAGLE_TIMED)


def own_windows(recording):
    """Every drafter as it was recorded."""
    return [(info.name, f"{info.name}:{info.window}/{recording.meta.target}") for info in recording.meta.drafters]


def run(recording, policy, cost=None, **scenario):
    tables = tables_of(recording)
    cost = UnitCost() if cost is None else cost
    return simulate(Scenario(tables=tables, cost=cost, **scenario), make_policy(policy, tables.pool), policy)


def column(log, recording, values):
    """`values` by request in the order of the recording."""
    place = {request_id: index for index, request_id in enumerate(log.requests["request_id"].tolist())}
    return np.array([values[place[request.request_id]] for request in recording.requests])


@needs_spec_bench
def test_each_method_of_spec_bench_takes_the_recorded_steps(spec_bench):
    assert len(spec_bench.meta.drafters) == 2
    for name, chain in own_windows(spec_bench):
        log = run(spec_bench, chain, batch=4)
        steps = np.bincount(log.rounds()["request"], minlength=len(spec_bench.requests))
        recorded = [len(request.rounds[name].start) for request in spec_bench.requests]
        assert column(log, spec_bench, steps).tolist() == recorded
        emitted = column(log, spec_bench, log.requests["emitted_tokens"]).tolist()
        assert emitted == [request.length(name) for request in spec_bench.requests]
        assert summarise_run(log).exact_share == 1


@needs_spec_bench
def test_spec_bench_answers_take_the_recorded_seconds(spec_bench):
    cost = TimedCost(spec_bench)
    for name, chain in [("", "plain"), *own_windows(spec_bench)]:
        log = run(spec_bench, chain, cost)
        measured = np.array([request.seconds(name) for request in spec_bench.requests])
        spent = log.requests["finished_at_s"] - log.requests["admitted_at_s"]
        np.testing.assert_allclose(spent, measured, rtol=1e-9)


@needs_spec_bench
def test_another_window_of_a_token_drafter_is_almost_all_recorded(spec_bench):
    name, _ = next(own for own in own_windows(spec_bench) if "sps" in own[0])
    summaries = [summarise_run(run(spec_bench, f"{name}:{window}/target")) for window in (3, 8)]
    assert all(0.99 < summary.exact_share < 1 for summary in summaries)
    lengths = [summary.acceptance_length for summary in summaries]
    assert lengths == sorted(lengths)


@needs_eagle_timed
def test_eagle_on_an_h100_takes_the_measured_seconds(eagle_timed):
    """Decoding: of each answer within 3% in the median, of all together within 2%, warm-up left out."""
    cost = TimedCost(eagle_timed)
    for name, chain in own_windows(eagle_timed):
        log = run(eagle_timed, chain, cost)
        prefill = np.array([request.prefill_s[name] for request in eagle_timed.requests])
        measured = np.array([request.seconds(name) for request in eagle_timed.requests]) - prefill
        spent = log.requests["finished_at_s"] - log.requests["admitted_at_s"] - prefill
        measured, spent = measured[WARM_UP:], spent[WARM_UP:]
        assert np.median(np.abs(spent / measured - 1)) < 0.03
        assert abs(spent.sum() / measured.sum() - 1) < 0.02
        assert summarise_run(log).exact_share > 0.999
