"""For the target alone the engine equals a plain one, picosecond for picosecond."""

from dataclasses import replace

import pytest
from hypothesis import given
from paceline.sim.serving.limits import KvWindow, Preemption
from paceline.traces.workloads.arrival import Arrival

from .plain_reference import serves_plainly
from .served_runs import limits, limits_of, target_only, workloads


@given(workloads(most=20), limits(target_only(), prefix_cache=False))
def test_the_engine_equals_the_plain_one(arrivals, given_limits):
    serves_plainly(arrivals, given_limits)


@pytest.mark.parametrize("tokens", [1, 8, 10, 33])
def test_it_does_with_layers_that_hold_a_window(tokens):
    """Blocks leave it after every step, not only when others are taken."""
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    tight = limits_of(target_only(), max_num_seqs=8, token_budget=16, num_blocks=62, block_tokens=4, prefix_cache=False)
    window = KvWindow(tokens=tokens, whole=1, near=2, most_new=16)
    kv = {name: replace(one, window=window) for name, one in tight.kv.items()}
    assert len(serves_plainly(arrivals, replace(tight, kv=kv))) > 5


@pytest.mark.parametrize("preemption", Preemption)
def test_it_does_where_memory_is_short(preemption):
    arrivals = [Arrival(f"q{index}", index * 10**8, 5 + index % 20, 30 + index % 30) for index in range(60)]
    tight = limits_of(target_only(), max_num_seqs=8, token_budget=16, num_blocks=30, block_tokens=4, prefix_cache=False)
    assert len(serves_plainly(arrivals, replace(tight, preemption=preemption))) > 20
