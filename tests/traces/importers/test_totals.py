"""Logs that state rates or a mean for all requests together: lines, pages of metrics, results and tables."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces.importers import ImportOptions, Load, read_recording

from .foreign_files import (
    counters,
    decode_batch,
    iteration,
    llamacpp_counters,
    metrics_line,
    sglang_bench,
    sglang_counters,
    trtllm_counters,
    vllm_bench,
    write,
    write_lines,
    write_text,
)

LOAD = Load(requests=5, output_tokens=40, prompt_tokens=7)
FIVE = [0.9, 0.8, 0.7, 0.6, 0.5]
TWO_DEPTHS = metrics_line([0.9, 0.8, 0, 0, 0], 170, 200, depth=2)
# 50 drafts of 2 tokens and 50 of 5: positions 3 to 5 seem to be kept half as often.
MIXED = [0.9, 0.8, 0.35, 0.3, 0.25]
ADAPTED = "depth was adapted, from 2 to 5 tokens: a position counts for the drafts that had it"
BEFORE = counters(1015, [701, 499, 393], requests=19, tokens=2640)
AFTER = counters(4339, [2892, 2049, 1530], requests=51, tokens=10832)
ENDED = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="abort"} 6'
OTHERS = ["vllm:request_latency_bucket{le=} ?", 'x{y="z} 1', "vllm:num_requests_running NaN", "vllm:gone -1"]
CURVE = {1: 1.8, 2: 2.4, 3: 2.85, 4: 3.1}
SURVIVAL = [0.8, 0.6, 0.45, 0.25]
YAML = ["# golden", "_metadata:", "  draft-model: some/drafter", "some-model:", "  thinking_on:"]
SHORT = "drafts were {} tokens long on average, of {}"


def survival(trace):
    """Shares of drafts that keep each token."""
    drafter = trace.meta.drafters[0]
    hazards = [*drafter.stated.hazards] + [drafter.stated.hazards[-1]] * drafter.window
    return np.cumprod(hazards[: drafter.window])


def mean_of(trace):
    """Tokens that steps of the drafter's window emit."""
    return 1 + float(survival(trace).sum())


# Format, lines, options, rates that are stated, share of the steps that draft (None: whatever), a note.
RATES = [
    ("vllm-log", [metrics_line(FIVE, 350, 500, depth=5), TWO_DEPTHS], {"load": LOAD}, FIVE, 1, ADAPTED),
    ("vllm-log", [TWO_DEPTHS, metrics_line(MIXED, 260, 350, depth=5)], {"load": LOAD}, FIVE[:2], 1, ADAPTED),
    ("vllm-log", [metrics_line(FIVE, 350, 500, depth=5), metrics_line(MIXED, 260, 350, depth=2)], {"load": LOAD},
     FIVE, 1, ADAPTED),
    # An n-gram that found less than the depth: nothing changed, so the depth does not explain it.
    ("vllm-log", [metrics_line([0.5, 0.2], 70, 130, depth=2)], {"load": LOAD}, [0.5, 0.2], 1, SHORT.format("1.30", 2)),
    # Lines are weighed by their drafts: 300, 100 and 100.
    ("vllm-log", [metrics_line([0.9, 0.6], 450, 600), "INFO other", metrics_line([0.5, 0.3], 80, 200),
                  metrics_line([0.0, 0.0], 0, 200), metrics_line([0.0, 0.0], 0, 0)],
     {"load": LOAD}, [0.64, 0.42], 1, ""),
    # Rates of 0.3333 printed as 0.333 seem to be those of 1001 drafts.
    ("vllm-log", [metrics_line([0.333] * 3, 1000, 3000)], {"load": LOAD}, [0.333] * 3, 1, ""),
    ("vllm-log", [metrics_line([0.333] * 3, 1000, 2990)], {"load": LOAD}, [0.333] * 3, 1, SHORT.format("2.99", 3)),
    ("vllm-metrics", [*counters(600, [480, 300, 150], requests=9, tokens=1000), "# a comment", 'vllm:other{x="}"} 1',
                      *counters(400, [320, 200, 50], requests=11, tokens=1300, engine=1)], {}, [0.8, 0.5, 0.2], 1, ""),
    ("vllm-metrics", [*counters(600, [480, 300], requests=9, tokens=1000), *counters(400, [320, 200], model="n")], {},
     [0.8, 0.5], 1, "counts of 2 models are added: m, n"),
    # 500 steps more than there are drafts: 20 prefills, 1000 drafts, 1500 accepted, 500 plain ones.
    ("vllm-metrics", counters(1000, [800, 500, 200], requests=20, tokens=3020), {}, [0.8, 0.5, 0.2], 2 / 3,
     "33.33% of the steps drafted nothing"),
    ("vllm-metrics", counters(100, [50, 20], drafted=130), {"load": LOAD}, [0.5, 0.2], 1, SHORT.format("1.30", 2)),
    ("vllm-metrics", [*BEFORE, ENDED], {}, np.array([701, 499, 393]) / 1015, None,
     "6 requests were aborted or failed: they are no answers"),
    # An exemplar is no value, and what nobody reads may be anything.
    ("vllm-metrics", [*OTHERS, *(f'{line} # {{trace="x, }} y"}} 0.5' if line[0] == "v" else line for line in BEFORE)],
     {}, np.array([701, 499, 393]) / 1015, None, ""),
    ("llamacpp-metrics", llamacpp_counters(100, [70, 50]), {"load": LOAD}, [0.7, 0.5], 1, ""),
    # 20 drafts had one token only: they say nothing of the second.
    ("trtllm-metrics", trtllm_counters([100, 80], [70, 40], by_place=True), {}, [0.7, 0.5], None, ""),
    ("trtllm-iterations", [iteration(number, 1, 3, kept) for number, kept in enumerate([3, 0, 1, 3, 2, 0])],
     {"load": LOAD}, [4 / 6, 3 / 6, 2 / 6], 1, ""),
    ("vllm-bench", [vllm_bench([0.7, 0.5], lens=(20, 0, 30))], {}, [0.7, 0.5], 1,
     "1 answers without a token were left out"),
    *(("acceptance-by-k", lines, {"load": LOAD}, SURVIVAL, 1, "") for lines in (
        ["k,acceptance_length", *(f"{k},{v}" for k, v in CURVE.items())],
        ["num_speculative_tokens, AL", *(f"{k}, {v}" for k, v in CURVE.items())],
        [{str(k): v for k, v in CURVE.items()}],
        [{"some-model": {"on": {str(k): v for k, v in CURVE.items()}}, "_about": {"x": "y"}}],
        [{"num_speculative_tokens": k, "acceptance_length": v} for k, v in CURVE.items()],
        [json.dumps([{"K": k, "al": v} for k, v in CURVE.items()])],
        [*YAML, *(f"    {k}: {v}" for k, v in CURVE.items())],
    )),
    ("acceptance-by-k", [{"1": 1.8, "2": 2.5, "3": 2.9, "4": 3.4, "5": 3.6}], {"load": LOAD},
     [0.8, 0.7, 0.45, 0.45, 0.2], 1, "lengths by K as fitted, since shares of drafts cannot rise with depth: K = 3"),
]  # fmt: skip


@pytest.mark.parametrize("row", RATES, ids=lambda row: f"{row[0]} {row[5]}"[:60])
def test_rates_are_those_of_the_log(read, tmp_path, row):
    name, lines, options, rates, drafting, note = row
    trace = read("auto", write(tmp_path / "x", *lines), **options)
    assert (trace.meta.source, trace.meta.form) == (name, "rates")
    np.testing.assert_allclose(survival(trace), rates)
    assert drafting is None or trace.meta.drafters[0].stated.drafting == pytest.approx(drafting)
    passed = "no draft had the positions", "drafted nothing, as tokens" if drafting is None else "no draft had"
    notes = [one for one in trace.meta.notes[2:] if not any(words in one for words in passed)]
    assert [one[: len(note)] for one in notes] == ([note] if note else [])
    if "load" in options:
        assert [(one.prompt_tokens, one.num_tokens["drafter"]) for one in trace.requests] == [(7, 40)] * 5


# Format, lines, options, tokens a step, window, a note.
TREE = "steps were proposed more tokens than chains of 4 have: trees, of which the deepest path counts"
ARGS = (
    "[2026-05-02] server_args=ServerArgs(model_path='m', speculative_algorithm='{}', speculative_num_steps={}, "
    "speculative_eagle_topk={}, speculative_num_draft_tokens={})"
)
IN_A_TREE = [decode_batch(2.9, 1.9 / 15), decode_batch(3.1, 2.1 / 15)]
ITERATIONS = [
    iteration(1, 0, None, 0, generating=0), iteration(2, 8, 24, 12, generating=8), iteration(3, 0, 0, 0, generating=4),
    iteration(4, 4, 12, 3, generating=4), iteration(4, 4, 12, 3, attentionDpRank=1),
]  # fmt: skip
RANKS = "1 iterations of further ranks"
MEANS = [
    ("sglang-log", [decode_batch(2.9, 0.48), decode_batch(3.1, 0.53)], {"load": LOAD}, 3.0, 4, ""),
    ("sglang-log", [decode_batch(2.9, None)], {"load": LOAD, "windows": {"drafter": 3}}, 2.9, 3, ""),
    ("sglang-log", [ARGS.format("EAGLE3", 4, 4, 16), *IN_A_TREE], {"load": LOAD}, 3.0, 4, TREE),
    ("sglang-log", IN_A_TREE, {"load": LOAD, "windows": {"drafter": 4}}, 3.0, 4, TREE),
    ("trtllm-iterations", ITERATIONS, {"load": LOAD}, 1 + 15 / 12, 3, RANKS),
    ("trtllm-iterations", [json.dumps(ITERATIONS)], {"load": LOAD}, 1 + 15 / 12, 3, RANKS),
    ("trtllm-metrics", trtllm_counters(400, 200), {"windows": {"drafter": 4}}, 3.0, 4, ""),
    ("trtllm-metrics", trtllm_counters(0, 0), {"windows": {"drafter": 4}}, 2.0, 4,
     "the mean is a gauge of trtllm_spec_decode_acceptance_length"),
    # 220 tokens, 4 of them of prefills, in 100 steps; the gauge is of the last interval alone.
    ("sglang-metrics", sglang_counters(3.5, steps=100), {}, 2.16, 3, ""),
    ("sglang-metrics", sglang_counters(2.5, 2.5), {"load": LOAD}, 2.5, 3, "the mean is a gauge of sglang:spec_accept"),
    ("acceptance-by-k", [{"3": 2.52}], {"load": LOAD}, 2.52, 3, "the table has K = 3: "),
    *(("sglang-bench", [sglang_bench(1 + 0.6 * window, request_rate=rate)], {"windows": {"drafter": window}},
       1 + 0.6 * window, window, "") for window, rate in ((1, float("inf")), (3, float("-inf")), (7, float("nan")))),
]  # fmt: skip


@pytest.mark.parametrize("row", MEANS, ids=lambda row: f"{row[0]} {row[5]}"[:60])
def test_means_are_met_by_rounds_of_the_window(read, tmp_path, row):
    name, lines, options, mean, window, note = row
    trace = read("auto", write(tmp_path / "x", *lines), **options)
    assert (trace.meta.source, trace.meta.form, trace.meta.drafters[0].window) == (name, "mean", window)
    assert mean_of(trace) == pytest.approx(mean)
    said = [one for one in trace.meta.notes if note and one.startswith(note)]
    assert len(said) == bool(note)
    assert any("trees" in one for one in trace.meta.notes) == (note == TREE)


@pytest.mark.parametrize("window", range(1, 9))
@pytest.mark.parametrize("old", [False, True])
def test_sglangs_lines_say_the_mean_and_the_window(read, tmp_path, window, old):
    """Both definitions of the rate: of proposed tokens, and of those with the target's own."""
    means, running = (1 + 0.31 * window, 1 + 0.74 * window, 1 + 0.55 * window), (3, 1, 6)
    lines = [
        decode_batch(mean, mean / (window + 1) if old else (mean - 1) / window, running=batch)
        for mean, batch in zip(means, running, strict=True)
    ]
    settings = ARGS.format("EAGLE3", window, 1, window + 1)
    trace = read("auto", write_text(tmp_path / "s.log", settings, "Prefill batch, #new-seq: 1", *lines), load=LOAD)
    assert trace.meta.drafters[0].window == window
    assert mean_of(trace) == pytest.approx(np.average(means, weights=running), abs=0.006)
    assert not any("trees" in note for note in trace.meta.notes)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.floats(0.3, 1.0), min_size=5, max_size=5))
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


@pytest.mark.parametrize("files", [2, 1], ids=["two files", "one after another in a file"])
def test_several_scrapes_are_one_counter_at_several_times(read, tmp_path, files):
    pages = [BEFORE, counters(2000, [1400, 1000, 800], requests=30, tokens=5000), AFTER]
    if files == 1:
        paths = [write_text(tmp_path / "all.prom", *(line for page in pages for line in page))]
    else:
        paths = [write_text(tmp_path / f"{number}.prom", *pages[number]) for number in (0, 2)]
    trace = read("auto", *paths)
    np.testing.assert_allclose(survival(trace), np.array([2191, 1550, 1137]) / 3324)
    assert len(trace.requests) == 32
    assert {request.num_tokens["drafter"] for request in trace.requests} == {256}
    counted = 3 if files == 1 else 2
    assert f"counts are those between the first and the last of {counted} pages of metrics" in trace.meta.notes
    # A series that begins later began at nothing.
    later = [*AFTER, 'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 8']
    assert len(read("auto", paths[0] if files == 2 else write_text(tmp_path / "a", *BEFORE),
                    write_text(tmp_path / "b", *later)).requests) == 40  # fmt: skip


def test_drafts_of_differing_lengths_keep_what_was_kept(read, tmp_path):
    """Six drafts of one token and six of three: one rate with which they keep 11 together."""
    trace = read("auto", write_lines(tmp_path / "i.jsonl", iteration(1, 6, 6, 4), iteration(2, 6, 18, 7)), load=LOAD)
    (rate,) = trace.meta.drafters[0].stated.hazards
    assert 6 * rate + 6 * (rate + rate**2 + rate**3) == pytest.approx(11)
    assert any(note.startswith(SHORT.format("2.00", 3)) for note in trace.meta.notes)


def test_gaps_between_ks_are_on_a_line(read, tmp_path):
    gaps = read("auto", write_lines(tmp_path / "g.json", {"2": 2.4, "4": 3.1}), load=LOAD)
    np.testing.assert_allclose((1 + np.cumsum(survival(gaps)))[[1, 2, 3]], [2.4, 2.75, 3.1])
    assert any(note.startswith("the table has K = 2, 4: ") for note in gaps.meta.notes)


def test_lengths_are_those_of_a_result_or_even(read, tmp_path):
    trace = read("auto", write_lines(tmp_path / "b.json", vllm_bench([0.7, 0.5], lens=(20, 0, 30))))
    assert [request.num_tokens["drafter"] for request in trace.requests] == [20, 30]
    bare = {key: value for key, value in vllm_bench([0.7, 0.5]).items() if not key.endswith("_lens")}
    trace = read("vllm-bench", write_lines(tmp_path / "b.json", bare))
    assert [request.num_tokens["drafter"] for request in trace.requests] == [25, 25]
    page = [*counters(600, [480], requests=9, tokens=1000), *counters(400, [320], requests=11, tokens=1300, engine=1)]
    trace = read("auto", write_text(tmp_path / "m.prom", *page))
    assert (len(trace.requests), sum(one.num_tokens["drafter"] for one in trace.requests)) == (20, 2300)
    assert {request.prompt_tokens for request in trace.requests} == {10}


# -- the blocks that `vllm bench serve` and SGLang's `bench_serving` print: as good as result files without details


PRINTED_VLLM = """\
============ Serving Benchmark Result ============
Successful requests:                     4
Maximum request concurrency:             16
Benchmark duration (s):                  21.50
Total input tokens:                      40
Total generated tokens:                  404
Request throughput (req/s):              3.72
---------------Time to First Token----------------
Mean TTFT (ms):                          20.10
---------------Speculative Decoding---------------
Acceptance rate (%):                     55.00
Acceptance length:                       2.10
Drafts:                                  100
Draft tokens:                            200
Accepted tokens:                         110
Per-position acceptance (%):
  Position 0:                            70.00
  Position 1:                            40.00
==================================================
"""
PRINTED_SGLANG = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Successful requests:                     4
Total input tokens:                      40
Total generated tokens:                  404
Accept length:                           2.50
==================================================
"""
TOTALS = {"completed": 4, "total_input_tokens": 40, "total_output_tokens": 404}
PRINTED = {
    "vllm-bench": (PRINTED_VLLM, vllm_bench([0.7, 0.4], input_lens=None, output_lens=None, **TOTALS), {}),
    "sglang-bench": (PRINTED_SGLANG, sglang_bench(2.5, **TOTALS), {"windows": {"drafter": 4}}),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_block_says_what_the_file_of_its_run_says(read, refusal, tmp_path, name):
    text, result, options = PRINTED[name]
    noise = "Namespace(backend='x')\nStarting initial test\n100%|####| 4/4\n\nTotal: 4\n"
    found = read("auto", write_text(tmp_path / "x.txt", noise, text, "Done: drafting ended", "accept: 3"), **options)
    file = read("auto", write_lines(tmp_path / "x.json", result), **options)
    assert found.meta == file.meta
    assert [repr(request) for request in found.requests] == [repr(request) for request in file.requests]
    path = write_text(tmp_path / "x.txt", text + text.replace(" 404", " 808"))
    second = text.count("\n") + 1
    assert f"the file holds 2 results: `line` N, one of 1, {second}, got" in refusal("auto", path, **options)
    for line, tokens in ((1, 404), (second, 808)):
        chosen = read("auto", path, line=line, **options)
        assert sum(request.num_tokens["drafter"] for request in chosen.requests) == tokens


def test_of_several_results_one_is_chosen_by_its_line(read, tmp_path):
    both, options = (sglang_bench(2.9, completed=1), sglang_bench(2.1, completed=5)), {"windows": {"drafter": 4}}
    path = write_lines(tmp_path / "two.jsonl", *both)
    assert {line: len(read("auto", path, line=line, **options).requests) for line in (1, 2)} == {1: 1, 2: 5}
    path.write_text("\n".join(json.dumps(one, indent=1) for one in both))
    second = json.dumps(both[0], indent=1).count("\n") + 2
    assert len(read("auto", path, line=second, **options).requests) == 5
