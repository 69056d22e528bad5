"""Queueing theory at batch 1: waiting times of Poisson arrivals at one server."""

import numpy as np
import pytest
from paceline.traces.workloads.arrival import Arrival

from .served_runs import LineCost, Run, limits_of, target_only

MEAN_TOKENS = 1000
NUM_REQUESTS = 150_000


def mean_waiting_ps(lengths, rate_per_ps, rng):
    """Of requests whose only step reads a prompt, which takes as long as the prompt is."""
    tables = target_only()
    gaps = rng.exponential(1 / rate_per_ps, len(lengths))
    arrives_ps = np.cumsum(gaps).astype(np.int64).tolist()
    arrivals = [Arrival(f"q{i}", at, length, 1) for i, (at, length) in enumerate(zip(arrives_ps, lengths, strict=True))]
    limits = limits_of(tables, max_num_seqs=1, token_budget=10**6, prefix_cache=False)
    cost = LineCost(tables, each=-1, new=1, context=0)  # the row itself takes the one away
    requests = Run(arrivals, tables, "target", limits, cost=cost).go().log.requests
    served_ps = requests["ended_at_ps"] - requests["scheduled_at_ps"]
    assert served_ps.tolist() == [length * 10**6 for length in lengths]
    return float((requests["scheduled_at_ps"] - requests["arrived_at_ps"]).mean())


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_constant_service_waits_as_in_m_d_1(share):
    rng = np.random.default_rng(7)
    service_ps = MEAN_TOKENS * 10**6
    found = mean_waiting_ps([MEAN_TOKENS] * NUM_REQUESTS, share / service_ps, rng)
    assert found == pytest.approx(service_ps * share / (2 * (1 - share)), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_exponential_service_waits_as_in_m_m_1(share):
    rng = np.random.default_rng(11)
    service_ps = MEAN_TOKENS * 10**6
    lengths = np.ceil(rng.exponential(MEAN_TOKENS, NUM_REQUESTS)).astype(int).tolist()
    found = mean_waiting_ps(lengths, share / service_ps, rng)
    assert found == pytest.approx(service_ps * share / (1 - share), rel=0.02)
