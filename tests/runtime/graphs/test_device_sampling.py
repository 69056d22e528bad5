"""What the device accepts is what a loop over tokens would."""

import random

import pytest
import torch
from paceline.decoding.rules import Signal
from paceline.runtime.graphs import accept, choose, said_of
from paceline.runtime.state import rounded_signal, signals


def by_a_loop(ids, written, best, start, judged):
    accepted = 0
    while accepted < judged and written[start + accepted] == ids[start + accepted + 1]:
        accepted += 1
    finite = all(abs(score) < float("inf") for score in best[start : start + judged + 1])
    return [accepted, written[start + accepted], int(finite)]


@pytest.mark.parametrize("seed", range(20))
def test_accepted_tokens_are_those_before_the_first_difference(seed):
    rng = random.Random(seed)
    rows, width = 6, 8
    judged = [rng.randint(0, width - 1) for _ in range(rows)]
    starts = [rng.randint(0, width - 1 - count) for count in judged]
    ids = [[rng.randint(0, 1) for _ in range(width)] for _ in range(rows)]
    written = [[*(token if rng.random() < 0.8 else 5 for token in row[1:]), 7] for row in ids]
    best = [[float("nan") if rng.random() < 0.05 else 1.0 for _ in range(width)] for _ in range(rows)]
    found = accept(*(torch.tensor(numbers) for numbers in (ids, written, best, starts, judged)))
    assert found.tolist() == [by_a_loop(*row) for row in zip(ids, written, best, starts, judged, strict=True)]


def test_what_is_said_of_a_token_is_what_is_said_without_graphs():
    torch.manual_seed(0)
    rows = torch.randn(50, 40) * 4
    tokens, best = choose(rows, None)
    assert torch.equal(best, rows.amax(dim=-1))
    said: list[Signal] = [rounded_signal(*numbers) for numbers in said_of(rows, tokens).double().tolist()]
    assert said == signals(rows, tokens.tolist())


def test_noise_moves_choices():
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    tokens, _ = choose(rows, torch.tensor([[2.0, 0.0], [0.0, 0.0]]))
    assert tokens.tolist() == [0, 1]
