"""Draws beyond the record: from rates fitted on what it holds, the same for every policy."""

from random import Random

import numpy as np
import pytest
from paceline.sim.contexts import Fallback
from paceline.traces import SyntheticSpec, make_trace

from .small_traces import THREE, request_of, trace_of

TRACE = make_trace(
    SyntheticSpec(requests=20, tokens=60, models=THREE, acceptance=(0.6, 0.8), off_trunk=(0.5, 0.7), depth_decay=0.1)
)


def keys(count):
    return [(f"r{index % 7}", index // 7, drafter, verifier) for index in range(count) for drafter, verifier in PAIRS]


PAIRS = ((0, 1), (0, 2), (1, 2))


def test_draws_can_be_repeated_in_any_order():
    asked = keys(300)
    one, other = Fallback(TRACE, seed=4), Fallback(TRACE, seed=4)
    forwards = {key: one.accepts(*key) for key in asked}
    shuffled = Random(1).sample(asked, len(asked))
    assert {key: other.accepts(*key) for key in shuffled} == forwards
    assert {key: one.accepts(*key) for key in shuffled} == forwards


def test_another_seed_is_other_luck():
    asked = keys(300)
    one, other = Fallback(TRACE, seed=0), Fallback(TRACE, seed=1)
    assert [one.accepts(*key) for key in asked] != [other.accepts(*key) for key in asked]


@pytest.mark.parametrize("pair", PAIRS)
def test_the_rate_of_draws_is_the_fitted_one(pair):
    fallback = Fallback(TRACE, seed=0)
    count = 20_000
    accepted = sum(fallback.accepts(f"r{index % 50}", index // 50, *pair) for index in range(count))
    rate = fallback.rates[pair]
    assert 0.01 < rate < 0.99
    assert abs(accepted / count - rate) < 4 * np.sqrt(rate * (1 - rate) / count)


def test_a_member_agrees_with_itself():
    fallback = Fallback(TRACE)
    assert np.diag(fallback.rates).tolist() == [1.0, 1.0, 1.0]
    assert (fallback.rates == fallback.rates.T).all()
    assert all(fallback.accepts("r0", position, 1, 1) for position in range(100))


def test_rates_are_those_far_from_the_trunk():
    """Of contexts 0, 1, 2 and 3 tokens off the trunk, the outer half are those with 2 and 3."""
    views = {
        (): (5, 9),
        (9,): (9, 9),
        (5,): (6, 6),  # distance 1
        (5, 6): (7, 8),  # distance 2
        (5, 6, 7): (8, 8),  # distance 3
        (5, 6, 7, 8): (1, 2),  # distance 4
        (5, 6, 8): (3, 4),  # distance 3
    }
    rates = Fallback(trace_of(request_of(views))).rates
    assert rates[0, 1] == rates[1, 0] == 1 / 3  # 3, 3 and 4 tokens off


def test_rates_of_a_recording_without_off_trunk_contexts():
    views = {(): (5, 9), (9,): (9, 9), (9, 9): (1, 1), (9, 9, 1): (2, 1)}
    assert Fallback(trace_of(request_of(views, budget=3))).rates[0, 1] == 2 / 4


def test_rates_fall_with_the_distance():
    """What is fitted is lower than on the trunk, and than right beside it."""
    rates = Fallback(TRACE).rates
    on_trunk = np.mean(
        [
            record.trie.next_token[0, record.trie.trunk] == record.trie.next_token[2, record.trie.trunk]
            for record in TRACE.requests
        ]
    )
    assert rates[0, 1] < 0.5
    assert rates[0, 2] < on_trunk
