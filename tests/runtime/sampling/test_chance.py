import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.coupled_noise import gumbel
from paceline.runtime.rejection_sampling import SeededChance
from scipy import stats

PROBS = torch.tensor([0.0, 0.1, 0.25, 0.0, 0.6, 0.05, 0.0], dtype=torch.float64)
EVEN = torch.full((1000,), 1e-3, dtype=torch.float64)


def draws(count=20, **named):
    chance = SeededChance(**{"seed": 7, "request_id": "q", **named})
    return [chance.draw(EVEN) for _ in range(count)]


def test_golden_values():
    chance = SeededChance(seed=7, request_id="q-1")
    told = [chance.draw(EVEN), chance.accepts(0.5), chance.draw(EVEN), chance.accepts(0.5), chance.draw(EVEN)]
    assert told == [902, False, 668, False, 698]


def test_depends_on_seed_and_request_only():
    assert draws() == draws()
    assert draws() != draws(seed=8)
    assert draws() != draws(request_id="r")
    assert draws(seed=1, request_id="1") != draws(seed=11, request_id="")


def test_the_stream_is_not_that_of_the_coupled_noise():
    chance = SeededChance(seed=7, request_id="q")
    uniform = np.array([chance.draw(torch.ones(2**16, dtype=torch.float64)) for _ in range(200)]) / 2**16
    noise = gumbel(7, "q", 0, 200).astype(np.float64)
    assert np.abs(np.exp(-np.exp(-noise)) - uniform).max() > 0.1


def test_draws_follow_the_probabilities():
    chance = SeededChance(seed=3, request_id="chi")
    counts = np.bincount([chance.draw(PROBS) for _ in range(20_000)], minlength=len(PROBS))
    possible = PROBS.numpy() > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], PROBS.numpy()[possible] * counts.sum()).pvalue > 0.01


@pytest.mark.parametrize("prob", [0.02, 0.5, 0.9])
def test_accepts_with_the_probability(prob):
    chance = SeededChance(seed=3, request_id="chi")
    accepted = sum(chance.accepts(prob) for _ in range(20_000))
    assert stats.binomtest(accepted, 20_000, prob).pvalue > 0.01


def test_sure_things_are_sure():
    chance = SeededChance(seed=0, request_id="a")
    assert all(chance.accepts(1.0) for _ in range(1000))
    assert not any(chance.accepts(0.0) for _ in range(1000))


@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 0.3, 1.0]), min_size=1, max_size=9).filter(any), st.integers()
)
def test_never_draws_the_impossible(weights, seed):
    probs = torch.tensor(weights, dtype=torch.float64)
    chance = SeededChance(seed=seed, request_id="a")
    assert all(probs[chance.draw(probs)] > 0 for _ in range(20))


@pytest.mark.parametrize("number", [0, 2**64 - 1], ids=["lowest", "highest"])
def test_the_ends_of_the_stream_point_at_possible_tokens(number):
    """Both uniform extremes, over distributions with impossible tokens at both ends."""
    chance = SeededChance(seed=0, request_id="a")
    chance._generator = type("Stuck", (), {"random_raw": lambda self: number})()
    for total in (0.3, 0.5, 1.0, 1.0 + 2**-52, 1.5, 3.0):
        probs = torch.tensor([0.0, total / 2, total / 2, 0.0], dtype=torch.float64)
        assert chance.draw(probs) == (1 if number == 0 else 2)


@pytest.mark.parametrize("probs", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_what_is_no_distribution_is_refused(probs):
    with pytest.raises(ValueError, match="probs must add up to a positive number"):
        SeededChance(seed=0, request_id="a").draw(torch.tensor(probs, dtype=torch.float64))
