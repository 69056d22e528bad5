"""Seconds that others measured, taken apart into rounds and put together again."""

import numpy as np
import pytest
from paceline.sim.cost.measured import TimedCost
from paceline.traces.importers import read_recording

from ...data_folder import data_files


def seconds_of_answers(source, pattern, folder):
    """Method -> (seconds put together from rounds, seconds of the file), request by request."""
    files = data_files(folder, pattern)
    if not files:
        pytest.skip(f"no {folder}: set PACELINE_DATA")
    recording = read_recording(source, files)
    cost = TimedCost(recording)
    answers = {}
    for request in recording.requests:
        for method, wall_s in request.wall_s.items():
            rounds = request.rounds.get(method)
            starts = range(request.num_tokens[method]) if rounds is None else rounds.start.tolist()
            parts = [cost.round_s(request.request_id, start, method) for start in starts]
            ours = sum(map(sum, parts)) + cost.prefill_s(request.request_id, method)
            answers.setdefault(method, []).append((ours, wall_s))
    return {method: np.array(pairs).T for method, pairs in answers.items()}, cost


def test_answers_shared_by_rounds():
    answers, cost = seconds_of_answers("spec-bench", "*.jsonl.gz", "specbench_yukiki")
    assert sorted(answers) == ["", "eagle", "sps"]
    for ours, theirs in answers.values():
        assert ours == pytest.approx(theirs)
    # Every width up to the longest window costs what a step of the target alone did.
    target_s = {cost.forward_s("target", num_rows=1, new_tokens=new, context_tokens=0) for new in range(1, 22)}
    assert len(target_s) == 1
    assert max(target_s) == pytest.approx(0.0195, rel=0.01)


def test_steps_with_their_own_seconds():
    """The log's steps leave out half a percent of the loop around them."""
    answers, _ = seconds_of_answers("eagle-timed", "h100*.gz", "hsd_eagle3_h100")
    assert sorted(answers) == ["eagle", "hsd"]
    for ours, theirs in answers.values():
        ratios = ours / theirs
        assert (ratios < 1).all()
        assert np.median(ratios[2:]) == pytest.approx(0.995, abs=0.003)
        assert ours[2:].sum() == pytest.approx(theirs[2:].sum(), rel=0.02)
