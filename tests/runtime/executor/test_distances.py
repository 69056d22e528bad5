"""Distances read like a tuple and are worked out when somebody looks, once for an operation."""

from math import isnan, nan

import pytest
import torch
from paceline.runtime.distances import Distances, Judgement, OpDistances

EQUAL, FAR, BROKEN = torch.tensor([[0.0, 0.0], [5.0, -5.0], [nan, 0.0]])
VERIFIER = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [-5.0, 5.0], [0.0, 0.0], [0.0, 0.0]])


class Looked(torch.Tensor):
    """The verifier's distributions; counts how often they are read."""

    looks = 0

    def __getitem__(self, index):
        Looked.looks += 1
        return super().__getitem__(index)


@pytest.fixture
def op():
    """Two requests: a token that the verifier wrote itself and one without distribution; then all kinds."""
    Looked.looks = 0
    rows = [Judgement(0, [FAR, None], [True, False]), Judgement(3, [EQUAL, FAR, BROKEN], [False] * 3)]
    return OpDistances(VERIFIER.as_subclass(Looked), rows)


def test_nobody_looks_and_nothing_is_worked_out(op):
    row = Distances(op, 1, 3)
    assert len(row) == 3
    assert len(row.first(2)) == 2
    assert Looked.looks == 0


def test_all_are_worked_out_by_the_first_look(op):
    first, second = Distances(op, 0, 2), Distances(op, 1, 3)
    assert second[0] == 0.0
    assert second[1] == pytest.approx(1.0, abs=1e-3)
    assert second[2] == 1.0  # without finite logits the request fails, whatever this says
    assert first[0] == 0.0
    assert isnan(first[1])
    assert Looked.looks == 1


def test_it_reads_like_a_tuple(op):
    row = Distances(op, 1, 3)
    values = tuple(row)
    assert row == values
    assert row[-1] == values[-1]
    assert row[:2] == values[:2]
    assert tuple(row.first(2)) == values[:2]
    assert row.first(9) == values
    assert repr(row) == repr(values)
    assert hash(row) == hash(values)
    with pytest.raises(IndexError):
        row[3]
    with pytest.raises(IndexError):
        row.first(1)[1]
