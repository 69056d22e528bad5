"""Logs that state rates or a mean for all requests together."""

import numpy as np
import pytest
from paceline.traces.importers import Load

from ..foreign_files import counters, metrics_line, sglang_bench, vllm_bench, write_lines, write_text

LOAD = Load(requests=5, output_tokens=40, prompt_tokens=7)


def survival(stated):
    return np.cumprod(stated.hazards)


def test_vllm_counters(read, tmp_path):
    page = [*counters(600, [480, 300, 150], requests=9, tokens=1000, engine=0), "# a comment", "vllm:other{x=\"}\"} 1",
            *counters(400, [320, 200, 50], requests=11, tokens=1300, engine=1)]  # fmt: skip
    trace = read("auto", write_text(tmp_path / "m.prom", *page))
    assert (trace.meta.source, trace.meta.form) == ("vllm-metrics", "rates")
    drafter = trace.meta.drafters[0]
    assert drafter.window == 3
    np.testing.assert_allclose(survival(drafter.stated), [0.8, 0.5, 0.2])
    assert len(trace.requests) == 20
    assert sum(request.num_tokens["drafter"] for request in trace.requests) == 2300
    assert {request.prompt_tokens for request in trace.requests} == {10}
    assert drafter.stated.drafting == 1.0


def test_steps_that_drafted_nothing_follow_from_the_totals(read, tmp_path):
    """500 steps more than there are drafts: 20 prefills, 1000 drafts, 1500 accepted, 500 plain ones."""
    page = counters(1000, [800, 500, 200], requests=20, tokens=20 + 1000 + 1500 + 500)
    trace = read("vllm-metrics", write_text(tmp_path / "m.prom", *page))
    assert trace.meta.drafters[0].stated.drafting == pytest.approx(2 / 3)
    assert any(note.startswith("33.33% of the steps drafted nothing") for note in trace.meta.notes)


def test_drafts_shorter_than_the_window_are_said(read, tmp_path):
    trace = read("vllm-metrics", write_text(tmp_path / "m.prom", *counters(100, [50, 20], drafted=130)), load=LOAD)
    assert any(note.startswith("drafts were 1.30 tokens long on average, of 2") for note in trace.meta.notes)


def test_requests_are_stated_where_the_log_names_none(read, refusal, tmp_path):
    path = write_text(tmp_path / "m.prom", *counters(100, [50, 20]))
    assert "requests: must be stated, the log does not know them: `requests` N `output_tokens` M" in refusal(
        "vllm-metrics", path
    )
    trace = read("vllm-metrics", path, load=LOAD)
    assert [(request.prompt_tokens, request.num_tokens["drafter"]) for request in trace.requests] == [(7, 40)] * 5
    named = write_text(tmp_path / "n.prom", *counters(100, [50, 20], requests=3, tokens=300))
    with pytest.raises(ValueError, match="`load` must be left out: this log names its requests"):
        read("vllm-metrics", named, load=LOAD)


def test_lines_of_vllms_log_are_weighed_by_their_drafts(read, tmp_path):
    lines = [metrics_line([0.9, 0.6], 450, 600), "INFO other", metrics_line([0.5, 0.3], 80, 200),
             metrics_line([0.0, 0.0], 0, 200), metrics_line([0.0, 0.0], 0, 0)]  # fmt: skip
    trace = read("auto", write_text(tmp_path / "x.log", *lines), load=LOAD)
    assert trace.meta.source == "vllm-log"
    drafts = [300, 100, 100]
    wanted = [(0.9 * 300 + 0.5 * 100) / sum(drafts), (0.6 * 300 + 0.3 * 100) / sum(drafts)]
    np.testing.assert_allclose(survival(trace.meta.drafters[0].stated), wanted)


def test_rounded_rates_are_no_short_drafts(read, tmp_path):
    """1000 drafts of three tokens each; rates of 0.3333 printed as 0.333 seem to be those of 1001 drafts."""
    for drafted, short in ((3000, False), (2990, True)):
        trace = read("vllm-log", write_text(tmp_path / "x.log", metrics_line([0.333] * 3, 1000, drafted)), load=LOAD)
        assert any(note.startswith("drafts were ") for note in trace.meta.notes) == short


def test_a_refused_line_is_told_by_its_end(refusal, tmp_path):
    line = f"{'x' * 5000} {metrics_line([0.9, 0.6], 450, 300)}"
    told = refusal("vllm-log", write_text(tmp_path / "x.log", line), load=LOAD)
    assert "must have rates in [0, 1] and no more accepted than drafted, got " in told
    assert "xxxxx" not in told


def test_bench_results_with_lengths_and_without(read, tmp_path):
    path = write_lines(tmp_path / "b.json", vllm_bench([0.7, 0.5], lens=(20, 0, 30)))
    trace = read("auto", path)
    assert trace.meta.source == "vllm-bench"
    assert [request.num_tokens["drafter"] for request in trace.requests] == [20, 30]
    assert "1 answers without a token were left out" in trace.meta.notes
    bare = {key: value for key, value in vllm_bench([0.7, 0.5]).items() if not key.endswith("_lens")}
    trace = read("vllm-bench", write_lines(tmp_path / "b.json", bare))
    assert [request.num_tokens["drafter"] for request in trace.requests] == [25, 25]


@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_mean_is_met_by_rounds_of_the_window(read, tmp_path, window):
    length = 1 + 0.6 * window
    path = write_lines(tmp_path / "s.jsonl", sglang_bench(length))
    trace = read("auto", path, windows={"drafter": window})
    assert (trace.meta.source, trace.meta.form) == ("sglang-bench", "mean")
    (hazard,) = trace.meta.drafters[0].stated.hazards
    assert 1 + sum(hazard**depth for depth in range(1, window + 1)) == pytest.approx(length)


@pytest.mark.parametrize(
    ("format_name", "write", "told"),
    [
        ("vllm-metrics", lambda p: write_text(p, *counters(100, [50, 60])), "[1]: must not exceed the rate before it"),
        ("vllm-metrics", lambda p: write_text(p, *counters(100, [150])), "must be at most the 100 drafts, got 150.0"),
        ("vllm-metrics", lambda p: write_text(p, *counters(0, [0])), "must count a draft, got 0.0"),
        (
            "vllm-metrics",
            lambda p: write_text(p, *counters("x", [1])),
            "line 2: vllm:spec_decode_num_drafts: must be of the form name{labels} value",
        ),
        ("vllm-metrics", lambda p: write_text(p, "# nothing"), "must count a draft"),
        (
            "vllm-log",
            lambda p: write_text(p, "SpecDecoding metrics: ?"),
            "line 1: SpecDecoding metrics:: must have Acc",
        ),
        ("vllm-log", lambda p: write_text(p, metrics_line([0.5], 1, 2), metrics_line([0.5, 0.1], 1, 2)), "1 positions"),
        ("vllm-bench", lambda p: write_lines(p, vllm_bench([0.5, 1.5])), "[1]: must be a number in [0, 1], got 1.5"),
        ("vllm-bench", lambda p: write_lines(p, vllm_bench([0.5], lens=(0,))), "an answer of at least one token"),
        ("sglang-bench", lambda p: write_lines(p, sglang_bench(2), sglang_bench(3)), "the file holds 2 results"),
        ("sglang-bench", lambda p: write_lines(p, sglang_bench(2)), "window: must be stated"),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, format_name, write, told):
    assert told in refusal(format_name, write(tmp_path / "x"))


def test_only_one_file(refusal, tmp_path):
    paths = [write_text(tmp_path / name, metrics_line([0.5], 50, 100)) for name in ("a", "b")]
    assert "b: file: must be the only one of this format, got '2 files'" in refusal("vllm-log", *paths)


def test_a_window_that_is_not_the_logs(refusal, tmp_path):
    path = write_lines(tmp_path / "b.json", vllm_bench([0.7, 0.5]))
    assert "window: must be that of `windows` drafter=5, got 2" in refusal("vllm-bench", path, windows={"drafter": 5})
    assert "accept_length: must lie between 1 and the window and one, 3 (`windows`), got 4" in refusal(
        "sglang-bench", write_lines(tmp_path / "s", sglang_bench(4)), windows={"drafter": 2}
    )
