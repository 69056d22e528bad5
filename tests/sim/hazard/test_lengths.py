"""How much a drafter drafts that stops by its own rule."""

import numpy as np
import pytest
from paceline.sim.hazard import fit_lengths, stated_lengths
from paceline.traces.meta import MOST
from paceline.traces.rounds.rounds import DrafterInfo, Rounds, RoundsRequest


def request(*drafted, length=1000):
    start = np.arange(0, 10 * len(drafted), 10, dtype=np.int32)
    rounds = Rounds(start=start, accepted=np.zeros(len(drafted), np.int32), drafted=np.array(drafted, np.int32))
    return RoundsRequest(request_id="r", tag="", num_tokens={"": length}, rounds={"d": rounds})


def fit(*requests, window=5):
    return fit_lengths(requests, DrafterInfo(name="d", by_start=True, window=window))


@pytest.mark.parametrize("drafted", [(5, 5), (-1, -1), (-2, 5), ()])
def test_a_drafter_that_never_stopped_by_itself_has_no_lengths(drafted):
    assert fit(request(*drafted)) is None


def test_a_draft_that_the_text_may_have_cut_tells_nothing():
    assert fit(request(5, 5, 3, length=24)) is None
    assert fit(request(5, 5, 3, length=26)) is not None


def test_a_whole_draft_has_no_end():
    found = fit(request(5, 0, 5, 2))
    drawn = [found.draw(0, whose, which) for whose in (0.0, 0.99) for which in (0.0, 0.3, 0.6, 0.9)]
    assert drawn == [MOST, 0, MOST, 2] * 2


def test_a_request_with_many_rounds_is_its_own_model():
    many, few = [0] * 92, [5] * 8
    found = fit(request(*many), request(*few))
    draws = np.random.default_rng(0).random((4000, 2))
    own = np.mean([found.draw(0, *draw) == 0 for draw in draws])
    other = np.mean([found.draw(1, *draw) == 0 for draw in draws])
    assert own == pytest.approx(0.92 + 0.08 * 0.92, abs=0.02)
    assert other == pytest.approx(0.5 * 0.92, abs=0.02)
    assert fit(request(*many), request()).draw(1, 0.0, 0.5) == 0


def test_what_every_draft_had_needs_no_draw():
    assert fit(request(5, 3, 4)).fewest == 3
    assert fit(request(5, 0)).fewest == 0


def test_a_stated_draft_is_whole_whatever_the_window():
    found = stated_lengths(0.4, num_requests=2)
    assert [found.draw(1, 0.5, which) for which in (0.0, 0.39, 0.41, 0.99)] == [MOST, MOST, 0, 0]
