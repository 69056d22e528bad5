"""vLLM's log where the depth of drafts is adapted: positions that were not drafted were not refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.importers import ImportOptions, Load, read_recording

from ..foreign_files import metrics_line, write_text

LOAD = Load(requests=5, output_tokens=40, prompt_tokens=7)
FIVE = [0.9, 0.8, 0.7, 0.6, 0.5]


def survival(trace):
    return np.cumprod(trace.meta.drafters[0].stated.hazards)


def test_positions_beyond_the_present_depth_are_known_from_other_lines(read, tmp_path):
    lines = [metrics_line(FIVE, 350, 500, depth=5), metrics_line([0.9, 0.8, 0, 0, 0], 170, 200, depth=2)]
    trace = read("auto", write_text(tmp_path / "vllm.log", *lines), load=LOAD)
    assert trace.meta.drafters[0].window == 5
    np.testing.assert_allclose(survival(trace), FIVE)
    assert "depth was adapted, from 2 to 5 tokens: a position counts for the drafts that had it" in trace.meta.notes
    assert not any("tokens long on average" in note for note in trace.meta.notes)


depths = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(depths, st.lists(st.floats(0.3, 1.0), min_size=5, max_size=5))
def test_lines_of_any_depths_give_the_rates_that_all_of_them_have(tmp_path_factory, depths, kept):
    """Each line has 1000 drafts of its depth, kept as always; rates are rounded to three decimals."""
    rates = np.round(np.cumprod(kept), 3)
    lines = []
    for depth in depths:
        shown = [*rates[:depth], *[0.0] * (5 - depth)]
        lines.append(metrics_line(shown, round(1000 * sum(shown)), 1000 * depth, depth=depth))
    path = write_text(tmp_path_factory.mktemp("log") / "vllm.log", *lines)
    trace = read_recording("vllm-log", [path], ImportOptions(load=LOAD))
    assert trace.meta.drafters[0].window == max(depths)
    np.testing.assert_allclose(survival(trace), rates[: max(depths)], atol=2e-3)
    assert any("positions from" in note for note in trace.meta.notes) == (max(depths) < 5)


def test_a_line_in_which_the_depth_changed_tells_of_what_both_depths_have(read, tmp_path):
    """50 drafts of 2 tokens and 50 of 5: positions 3 to 5 seem to be kept half as often."""
    mixed = [0.9, 0.8, 0.35, 0.3, 0.25]
    for lines in (
        [metrics_line([0.9, 0.8, 0, 0, 0], 170, 200, depth=2), metrics_line(mixed, 260, 350, depth=5)],
        [metrics_line(FIVE, 350, 500, depth=5), metrics_line(mixed, 260, 350, depth=2)],
    ):
        trace = read("vllm-log", write_text(tmp_path / "vllm.log", *lines), load=LOAD)
        known = trace.meta.drafters[0].window
        np.testing.assert_allclose(survival(trace), FIVE[:known])


def test_drafts_that_end_by_themselves_are_still_said(read, tmp_path):
    """An n-gram that found less than the depth: nothing changed, so the depth does not explain it."""
    trace = read("vllm-log", write_text(tmp_path / "x.log", metrics_line([0.5, 0.2], 70, 130, depth=2)), load=LOAD)
    assert any(note.startswith("drafts were 1.30 tokens long on average, of 2") for note in trace.meta.notes)


@pytest.mark.parametrize("depth", [0, 6])
def test_a_depth_that_does_not_fit_is_refused(refusal, tmp_path, depth):
    told = refusal("vllm-log", write_text(tmp_path / "x.log", metrics_line(FIVE, 350, 500, depth=depth)), load=LOAD)
    assert "line 1: Current speculative depth: must lie between 1 and the 5 positions of a line that drafted" in told


def test_a_log_without_drafts_is_one(refusal, tmp_path):
    line = "INFO 05-18 [loggers.py:248] Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg generation throughput: 2.1"
    told = refusal("auto", write_text(tmp_path / "x.log", line), load=LOAD)
    assert "must have a line `SpecDecoding metrics:` with drafts: speculative decoding is off" in told
