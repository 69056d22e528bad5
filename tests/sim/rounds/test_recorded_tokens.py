"""What rounds say of tokens that start elsewhere, by hand and against each round in turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.difficulty import Beside, Outcome
from paceline.sim.rounds_answers import WHOLE, known_tokens
from paceline.traces.rounds.rounds import DrafterInfo

from .small_rounds import one_request, rounds_of

# Four kept of five, then one refused; a whole draft; an empty one; two kept, at the end of the text.
ROUNDS = rounds_of((0, 4, 5), (5, 5, 5), (11, 0, 0), (12, 2, 5))


def known(*, by_start, rounds=ROUNDS, length=14, window=5):
    info = DrafterInfo(name="d", by_start=by_start, window=window)
    return known_tokens(one_request({"": length}, {"d": rounds}), info)


@pytest.mark.parametrize(
    ("start", "depth", "told"),
    [
        (2, 0, Beside(Outcome.agreed, 2)),
        (2, 1, Beside(Outcome.agreed, 3)),
        (2, 2, Beside(Outcome.refused, 4)),
        (2, 3, Beside(Outcome.agreed, 0)),
        (6, 3, Beside(Outcome.agreed, 4)),
        (6, 4, Beside(Outcome.reached, 5)),
        (10, 0, Beside(Outcome.reached, 5)),
        (11, 0, None),
        (9, 2, Beside(Outcome.reached, 2)),  # nothing of this token, something of one before it
        (10, 1, Beside(Outcome.reached, 1)),
        (13, 0, Beside(Outcome.agreed, 1)),
        (0, 5, Beside(Outcome.agreed, 0)),  # beyond its own refusal, where nobody asks
    ],
)
def test_what_another_round_says(start, depth, told):
    assert known(by_start=True).beside(start, depth) == told


def test_its_own_round_is_not_another():
    assert known(by_start=True).beside(5, 4) is None
    assert known(by_start=True, rounds=rounds_of((0, 2, 5))).beside(0, 2) is None


@pytest.mark.parametrize(("start", "depth", "run"), [(8, 2, 5), (10, 0, 5), (5, 5, None), (4, 6, None), (0, 0, None)])
def test_a_token_drafter_knows_how_long_it_has_gone_well(start, depth, run):
    told = known(by_start=False).beside(start, depth)
    assert told == (None if run is None else Beside(Outcome.reached, run))


@pytest.mark.parametrize("by_start", [True, False])
def test_where_a_drafter_stops_by_itself(by_start):
    found = known(by_start=by_start)
    stops = [found.num_drafted(start) for start in (0, 5, 11, 12, 3)]
    assert stops == [WHOLE, WHOLE, 0, WHOLE, None]
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(0) == 3
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(3) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 1, -1), (5, 2, -2))).num_drafted(5) == WHOLE
    # A draft that the text's end cut did not stop by itself, and one of an unknown window may not have.
    assert known(by_start=by_start, rounds=rounds_of((11, 3, 3))).num_drafted(11) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 0, 0)), window=None).num_drafted(0) == WHOLE
    assert known(by_start=by_start, rounds=rounds_of((0, 2, 3), (3, 0, 0)), window=None).num_drafted(3) == 0


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=6),
    start=st.integers(0, 40),
    depth=st.integers(0, 8),
)
def test_the_last_round_before_a_token_speaks_of_it(rows, start, depth):
    columns, position = [], 0
    for accepted, whole in rows:
        columns.append((position, accepted, accepted if whole else 5 if accepted < 5 else 6))
        position += accepted + 1
    found = known(by_start=True, rounds=rounds_of(*columns), length=50, window=6).beside(start, depth)
    told = None
    for at, accepted, drafted in columns:
        there = start + depth - at
        if at != start and 0 <= there < accepted:
            told = Beside(Outcome.agreed, there)
        if at != start and there == accepted and drafted > accepted:
            told = Beside(Outcome.refused, there)
    if told is not None or (found is not None and found.outcome is not Outcome.reached):
        assert found == told


def test_placed_rounds_are_told_apart():
    rounds = rounds_of((0, 2, 3), (3, 0, 0), (4, 3, 3))
    marked = type(rounds)(
        start=rounds.start, accepted=rounds.accepted, drafted=rounds.drafted, placed=np.array([False, True, True])
    )
    for by_start in (True, False):
        found = known(by_start=by_start, rounds=marked, window=3)
        assert [found.was_placed(start) for start in (0, 3, 4)] == [False, True, True]
        assert [found.num_placed(0, 0, 3), found.num_placed(4, 0, 2), found.num_placed(4, 1, 9)] == [0, 2, 2]
