"""Logs of one window asked for another: longer than what they tell, and shorter."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from paceline.benchmarks.shared.engine_logs import cut, difficult_rounds, difficult_texts, replay
from paceline.decoding.seen import Start
from paceline.reports import summarise_run
from paceline.traces import read_trace

PICO = Path(__file__).parents[2] / "recordings" / "pico.trace"
SHORT, LONG = 3, 8
SEEDS = range(4)
TOLERANCE = 0.05
SHORTER = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    tokens_per_round: float
    exact_share: float
    log: object


def replayed(recording, drafter, window, seed=0):
    log = replay(recording, drafter, window, seed, Start.draft)
    summary = summarise_run(log)
    return Replayed(tokens_per_round=summary.acceptance_length, exact_share=summary.exact_share, log=log)


@cache
def pico():
    return read_trace(PICO)


@cache
def truth(drafter, window):
    """What the recording itself answers, all of it as recorded."""
    found = replayed(pico(), drafter, window)
    assert found.exact_share == 1
    return found


DRAFTERS = pytest.mark.parametrize(
    "drafter", ["draft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mid", "slim"))]
)
BY_START = pytest.mark.parametrize("by_start", [True, False], ids=["by start", "by token"])


@DRAFTERS
@BY_START
@pytest.mark.parametrize("ran_with", [SHORT, LONG], ids=["ran with 3", "ran with 8, cut to 3"])
@pytest.mark.one_in(2)
def test_windows_above_three_are_predicted(drafter, by_start, ran_with):
    hidden = cut(truth(drafter, ran_with).log, drafter, by_start=by_start, most=SHORT, tagged=True)
    predicted = [replayed(hidden, drafter, LONG, seed) for seed in SEEDS]
    assert all(0.4 < one.exact_share < 1 for one in predicted)
    mean = np.mean([one.tokens_per_round for one in predicted])
    assert mean == pytest.approx(truth(drafter, LONG).tokens_per_round, rel=TOLERANCE)


@pytest.mark.slow
@DRAFTERS
@BY_START
@pytest.mark.parametrize(("ran_with", "asked"), [(8, 1), (8, 3), (8, 5), (5, 3)])
def test_shorter_windows_than_the_logged_one(drafter, by_start, ran_with, asked):
    log = cut(truth(drafter, ran_with).log, drafter, by_start=by_start, most=ran_with, tagged=True)
    predicted = np.mean([replayed(log, drafter, asked, seed).tokens_per_round for seed in SEEDS])
    assert predicted == pytest.approx(truth(drafter, asked).tokens_per_round, rel=SHORTER)


@pytest.mark.parametrize(
    ("rho", "asked"),
    [(0.0, 3), (0.8, 1), (0.8, 3)]
    + [
        pytest.param(*of, marks=pytest.mark.slow) for of in ((0.0, 1), (0.0, 5), (0.5, 1), (0.5, 3), (0.5, 5), (0.8, 5))
    ],
)
@pytest.mark.slow
def test_shorter_windows_of_a_drafter_that_loses_the_thread(rho, asked):
    """Acceptance falls with depth, easy text is easy for long: what went on is easy, and more so from a later start.

    Without a look at the round that a draft starts in, persistent texts come out 6 to 10% too slow.
    """
    texts = difficult_texts(rho)
    rounds = difficult_rounds(texts, asked).requests
    known = texts.size / sum(len(request.rounds["draft"].start) for request in rounds)
    log = difficult_rounds(texts, LONG)
    predicted = [replayed(log, "draft", asked, seed) for seed in range(3)]
    assert np.mean([one.tokens_per_round for one in predicted]) == pytest.approx(known, rel=SHORTER)
    assert all(0.5 < one.exact_share < 1 for one in predicted)
