"""Metrics pages of four engines: one page, several, and what they do not tell."""

import numpy as np
import pytest
from paceline.traces.importers import Load

from ..foreign_files import counters, llamacpp_counters, sglang_counters, trtllm_counters, write_text

LOAD = Load(requests=5, output_tokens=40, prompt_tokens=7)
BEFORE = counters(1015, [701, 499, 393], requests=19, tokens=2640)
AFTER = counters(4339, [2892, 2049, 1530], requests=51, tokens=10832)


def survival(trace):
    return np.cumprod(trace.meta.drafters[0].stated.hazards)


def length(trace):
    """Tokens that a step of the window gives on average, its own among them."""
    (hazard,) = trace.meta.drafters[0].stated.hazards
    return 1 + sum(hazard**depth for depth in range(1, trace.meta.drafters[0].window + 1))


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


def test_a_series_that_begins_later_began_at_nothing(read, tmp_path):
    later = [*AFTER, 'vllm:request_success_total{engine="0",model_name="m",finished_reason="length"} 8']
    trace = read("auto", write_text(tmp_path / "a", *BEFORE), write_text(tmp_path / "b", *later))
    assert len(trace.requests) == 40


def test_a_server_that_was_started_anew_is_refused(refusal, tmp_path):
    before, after = write_text(tmp_path / "a", *BEFORE), write_text(tmp_path / "b", *AFTER)
    told = refusal("vllm-metrics", after, before)
    assert 'a: line 8: vllm:request_success{engine="0",finished_reason="stop",model_name="m"}: ' in told
    assert "must be at least the 51 of" in told
    assert "the server was started anew in between, or the pages are not in the order of time" in told
    created = 'vllm:spec_decode_num_drafts_created{engine="0",model_name="m"}'
    grown = [write_text(tmp_path / str(at), *page, f"{created} {at}e9") for at, page in ((1, BEFORE), (2, AFTER))]
    assert "must be the 1000000000 of" in refusal("vllm-metrics", *grown)
    lost = write_text(tmp_path / "c", *(line for line in AFTER if 'position="2"' not in line))
    assert 'position="2"}: must be there in the last page' in refusal("vllm-metrics", before, lost)


def test_series_of_engines_and_models_are_added_others_are_not(read, refusal, tmp_path):
    two = [*counters(600, [480, 300], requests=9, tokens=1000), *counters(400, [320, 200], engine=1, model="n")]
    trace = read("auto", write_text(tmp_path / "a", *two))
    np.testing.assert_allclose(survival(trace), [0.8, 0.5])
    assert "counts of 2 models are added: m, n" in trace.meta.notes
    pods = [line.replace("{", f'{{pod="{pod}",') for pod in "xy" for line in BEFORE]
    told = refusal("vllm-metrics", write_text(tmp_path / "b", *pods))
    assert "request_success.pod: must be series that differ in engine, finished_reason, model_name only" in told
    assert told.endswith("got 'x, y'")


def test_requests_that_were_aborted_are_no_answers(read, tmp_path):
    ended = 'vllm:request_success_total{engine="0",model_name="m",finished_reason="abort"} 6'
    trace = read("auto", write_text(tmp_path / "a", *BEFORE, ended))
    assert len(trace.requests) == 19
    assert any(note.startswith("6 requests were aborted or failed: they are no answers") for note in trace.meta.notes)


def test_an_exemplar_is_no_value_and_what_nobody_reads_may_be_anything(read, tmp_path):
    page = [f'{line} # {{trace="x, }} y"}} 0.5' if line.startswith("vllm:") else line for line in BEFORE]
    others = ["vllm:request_latency_bucket{le=} ?", 'x{y="z} 1', "vllm:num_requests_running NaN", "vllm:gone -1"]
    trace = read("auto", write_text(tmp_path / "a", *others, *page))
    np.testing.assert_allclose(survival(trace), np.array([701, 499, 393]) / 1015)


def test_counters_of_llama_cpp(read, tmp_path):
    trace = read("auto", write_text(tmp_path / "a", *llamacpp_counters(100, [70, 50])), load=LOAD)
    assert (trace.meta.source, trace.meta.form) == ("llamacpp-metrics", "rates")
    np.testing.assert_allclose(survival(trace), [0.7, 0.5])


def test_counters_of_tensorrt_llm_by_position(read, tmp_path):
    """20 drafts had one token only: they say nothing of the second."""
    page = trtllm_counters([100, 80], [70, 40], by_place=True)
    trace = read("auto", write_text(tmp_path / "a", *page))
    assert (trace.meta.source, trace.meta.form, trace.meta.drafters[0].window) == ("trtllm-metrics", "rates", 2)
    np.testing.assert_allclose(survival(trace), [0.7, 0.5])
    assert len(trace.requests) == 4


def test_counters_of_tensorrt_llm_in_total(read, refusal, tmp_path):
    path = write_text(tmp_path / "a", *trtllm_counters(400, 200))
    assert "window: must be stated" in refusal("auto", path)
    trace = read("auto", path, windows={"drafter": 4})
    assert trace.meta.form == "mean"
    assert length(trace) == pytest.approx(3.0)
    gauge = write_text(tmp_path / "b", *trtllm_counters(0, 0))
    trace = read("auto", gauge, windows={"drafter": 4})
    assert length(trace) == pytest.approx(2.0)
    assert any(
        note.startswith("the mean is a gauge of trtllm_spec_decode_acceptance_length") for note in trace.meta.notes
    )


def test_counters_of_sglang(read, tmp_path):
    """220 tokens, 4 of them of prefills, in 100 steps; the gauge is of the last interval alone."""
    trace = read("auto", write_text(tmp_path / "a", *sglang_counters(3.5, steps=100)))
    assert (trace.meta.source, trace.meta.form, trace.meta.drafters[0].window) == ("sglang-metrics", "mean", 3)
    assert length(trace) == pytest.approx(2.16)
    assert len(trace.requests) == 4


def test_gauges_of_sglang(read, refusal, tmp_path):
    trace = read("auto", write_text(tmp_path / "a", *sglang_counters(2.5, 2.5)), load=LOAD)
    assert length(trace) == pytest.approx(2.5)
    assert any(
        "a gauge of sglang:spec_accept_length, of the server's last interval only" in n for n in trace.meta.notes
    )
    two = write_text(tmp_path / "b", *sglang_counters(2.5, 2.7))
    assert refusal("auto", two).endswith("spec_accept_length: must be one gauge, got 'two gauges, 2.5 and 2.7'")
    none = write_text(tmp_path / "c", *sglang_counters(2.5, depth=0))
    assert "window: must be stated" in refusal("auto", none, load=LOAD)


@pytest.mark.parametrize(
    ("name", "lines", "told"),
    [
        ("vllm", ["vllm:spec_decode_efficiency 0.4"], "must count a draft, got 'vllm:spec_decode_efficiency'"),
        ("vllm", ["vllm:num_requests_running 0"], "_drafts_total: must count a draft, got 0.0"),
        ("llamacpp", ["llamacpp:tokens_predicted_total 4"], "spec_decode_num_drafts_total: must count a draft"),
        ("sglang", ["sglang:spec_num_steps 3", "sglang:spec_accept_rate 0.4"], "got 'sglang:spec_accept_rate'"),
        ("sglang", [*sglang_counters(0.0)], "must tell of speculative decoding, by sglang:"),
        ("sglang", [*sglang_counters(2.5, depth=0), "sglang:spec_num_steps 1e30"], "must be at most 1024"),
        ("trtllm", ["trtllm_prompt_tokens_total 4"], "window: must be stated"),
        ("vllm", [*counters(9, [5])[:-1], 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="x"} 5'],
         "_per_pos.position: must be a whole number below 1024, got 'x'"),
        ("vllm", [*counters(9, [5, 4])[:-1]], "per_pos_total: must add up to the 9 of vllm:spec_decode"),
        ("vllm", ["vllm:spec_decode_num_drafts_total -4"], "must be a finite number >= 0, got -4.0"),
        ("vllm", ["vllm:spec_decode_num_drafts_total NaN"], "must be a finite number >= 0, got nan"),
        ("vllm", ["vllm:spec_decode_num_drafts_total{" + "a" * 20_000], "must be a line of at most 10000 characters"),
    ],
)  # fmt: skip
def test_what_a_page_does_not_tell_is_refused(refusal, tmp_path, name, lines, told):
    assert told in refusal(f"{name}-metrics", write_text(tmp_path / "x.prom", *lines))
