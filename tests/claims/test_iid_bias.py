"""What a real EAGLE log says of independent acceptance, and of the fallback where parts of the log are hidden."""

import numpy as np
import pytest
from paceline.benchmarks.shared.engine_logs import keeping, rounds_taken
from paceline.policies.about import round_tokens
from paceline.traces.importers import read_recording

from ..data_folder import data_files

FILES = data_files("specbench_yukiki", "*eagle*.jsonl.gz")
SUBTASKS = ("MT-Bench", "translation", "summarization", "qa", "math_reasoning", "rag")
MANY = range(2)

pytestmark = pytest.mark.skipif(not FILES, reason="PACELINE_DATA has no specbench_yukiki")


@pytest.fixture(scope="module")
def eagle():
    return read_recording("spec-bench", FILES)


def subtask(request):
    return request.tag if request.tag in SUBTASKS else "MT-Bench"


def accepted_in(recording, name=None):
    """Accepted tokens of every round, of one subtask or all."""
    return np.concatenate(
        [one.rounds["eagle"].accepted for one in recording.requests if name is None or subtask(one) == name]
    )


def independent_rate(accepted, window):
    """Accepted over judged, as far as a log of this window tells."""
    return np.minimum(accepted, window).sum() / np.minimum(accepted + 1, window).sum()


def independent_tokens(accepted, *, seen, predicted):
    return round_tokens(independent_rate(accepted, seen), predicted)


def window_of(recording):
    return recording.meta.drafters[0].window


def recorded_rounds(recording):
    return np.array([len(one.rounds["eagle"].start) for one in recording.requests])


@pytest.mark.parametrize("name", [None, *SUBTASKS])
def test_independent_acceptance_over_predicts_what_short_windows_lead_to(eagle, name):
    """The first two tokens of a round are accepted more often than the next: read off them, rounds come out longer."""
    accepted = accepted_in(eagle, name)
    longer = independent_tokens(accepted, seen=2, predicted=window_of(eagle)) / (accepted.mean() + 1) - 1
    assert 0.12 < longer < 0.21


@pytest.mark.parametrize("name", [None, *SUBTASKS])
def test_independent_acceptance_under_predicts_at_the_window_it_was_counted_at(eagle, name):
    accepted = accepted_in(eagle, name)
    window = window_of(eagle)
    shorter = independent_tokens(accepted, seen=window, predicted=window) / (accepted.mean() + 1) - 1
    assert -0.10 < shorter < -0.03


def test_independent_acceptance_without_a_window_over_predicts(eagle):
    accepted = accepted_in(eagle)
    longer = 1 / (1 - independent_rate(accepted, window_of(eagle))) / (accepted.mean() + 1) - 1
    assert 0.13 < longer < 0.17


@pytest.mark.slow
def test_requests_that_were_not_seen_are_predicted(eagle):
    """Half of the requests from the other half and the other way round, for several ways to halve them."""
    errors = []
    for seed in MANY:
        first = np.random.default_rng(seed).random(len(eagle.requests)) < 0.5
        taken = np.zeros(len(first))
        for hidden in (first, ~first):
            part = keeping(eagle, lambda index, number, hidden=hidden: np.full(number, not hidden[index]))
            taken += np.where(hidden, rounds_taken(part, seed), 0)
        errors.append(recorded_rounds(eagle).sum() / taken.sum() - 1)
    assert max(np.abs(errors)) < 0.03
    assert abs(np.mean(errors)) < 0.02


@pytest.mark.slow
def test_rounds_that_were_not_seen_are_predicted(eagle):
    errors = []
    for seed in MANY:
        rng = np.random.default_rng(seed)
        part = keeping(eagle, lambda _, number, rng=rng: rng.random(number) < 0.5)
        errors.append(recorded_rounds(eagle).sum() / rounds_taken(part, seed).sum() - 1)
    assert max(np.abs(errors)) < 0.03
    assert abs(np.mean(errors)) < 0.015
