"""Logs that say a thing twice, and differently: each is refused in one line with field, rule, both values."""

import copy
import json

import pytest
from paceline.traces.importers import Load
from paceline.traces.importers.reading import half_of_last_digit

from .foreign_files import (
    counters,
    llamacpp_lines,
    metrics_line,
    new_llamacpp_lines,
    response,
    sglang,
    summary,
    timings,
    trtllm,
    trtllm_counters,
    vllm_bench,
    write_lines,
    write_text,
)

LOAD = {"load": Load(requests=3, output_tokens=20)}
WINDOW = {"windows": {"drafter": 4}}


@pytest.mark.parametrize(
    ("text", "half"), [("3", 0.5), ("3.0", 0.05), ("0.554", 0.0005), ("5e-05", 0.5e-5), ("1.25e-05", 0.5e-7)]
)
def test_rounding_is_told_by_the_digits_that_are_printed(text, half):
    assert half_of_last_digit(text) == pytest.approx(half)


def changed(found, path, value):
    """The same object with another value at the end of a path of keys."""
    found = copy.deepcopy(found)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


IN_VLLM = ("metrics", "speculative_decoding")
DETAILED = response("a", [3, 0, 1, 0], [3, 3, 3, 0])  # 4 of 9 tokens; one step drafted nothing
SUMMARY = summary("a", [3, 2, 0, 4])  # 14 of 27 tokens in 9 steps
TRTLLM = trtllm("a", histogram=[2, 0, 3])  # 6 of 10 tokens
BENCH = vllm_bench([0.7, 0.5, 0.4])  # 100 drafts, 160 of 300 tokens

# format, a sound object, path of a field, values that are sound as well, a value that is not, what the line says
OBJECTS = [
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [[1, 1, 0, 1], [2, 1, 0, 1, 0], None],
     [2, 2, 0, 1], "acceptance_histogram[1]: must be 1, as many steps of per_step_accepted kept 1 tokens, got 2"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [], [0, 1, 0, 1], "[0]: must be 2, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "acceptance_histogram"), [], [2, 1, 0, 1, 1], "[4]: must be 0, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_spec_steps"), [3, 4, None], 5, "num_spec_steps: must be 4, "),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_accepted_draft_tokens"), [4], 5, "tokens: must be 4, the tokens"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "num_draft_tokens"), [9], 12, "num_draft_tokens: must be 9, the sum"),
    ("vllm-detailed", DETAILED, (*IN_VLLM, "draft_acceptance_rate"), [4 / 9, 0.444, 0.44, None], 0.45,
     "draft_acceptance_rate: must be 0.4444: 4 accepted of 9 drafted tokens, got '0.45'"),
    ("vllm-detailed", response("a", [3, 0], [3, 3]), (*IN_VLLM, "mean_acceptance_length"), [2.5], 1.5,
     "mean_acceptance_length: must be 2.5: 1 and 3 accepted tokens in 2 steps, got '1.5'"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "num_spec_steps"), [9], 8, "num_spec_steps: must be 9, as many steps"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "num_accepted_draft_tokens"), [14], 13, "must be 14, the tokens that"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "mean_acceptance_length"), [1 + 14 / 9, 2.56], 2.4, "must be 2.556: 1 and 14"),
    ("vllm-summary", SUMMARY, (*IN_VLLM, "draft_acceptance_rate"), [14 / 27, 0.519], 0.6, "must be 0.5185: 14 acc"),
    ("trtllm", TRTLLM, ("choices", 0, "speculative_decoding", "total_accepted_draft_tokens"), [6], 7,
     "speculative_decoding.total_accepted_draft_tokens: must be 6, the tokens that acceptance_histogram adds up to"),
    ("trtllm", TRTLLM, ("choices", 0, "speculative_decoding", "acceptance_rate"), [0.6], 0.7, "must be 0.6: 6 acc"),
    ("llamacpp-timings", {**timings(30, 40, 12), "usage": {}}, ("usage", "completion_tokens"), [30, None], 31,
     "usage.completion_tokens: must be 30, by timings.predicted_n, got 31"),
    ("llamacpp-timings", timings(30, 40, 12), ("tokens_predicted",), [30], 29, "tokens_predicted: must be 30, by tim"),
    ("vllm-bench", BENCH, ("spec_decode_accepted_tokens",), [159, 161], 200,
     "spec_decode_accepted_tokens: must be about 160, the sum of the 3 rates per position of 100 drafts, got 200"),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_length",), [2.6, None], 3.1, "must be 2.6: 1 and 160 accepted"),
    ("vllm-bench", BENCH, ("spec_decode_acceptance_rate",), [53.33, 160 / 3], 63.33, "must be 53.33: 160 accepted"),
    ("vllm-bench", BENCH, ("spec_decode_draft_tokens",), [250, 300], 301, "the 160 accepted and 100 drafts of 3"),
    ("vllm-bench", BENCH, ("total_output_tokens",), [50, None], 51, "must be 50, the sum of output_lens, got 51"),
    ("vllm-bench", BENCH, ("completed",), [1, 2], 3, "completed: must be at most the 2 answers of output_lens, got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("format_name", "sound", "path", "others", "wrong", "told"), OBJECTS)
def test_objects(read, refusal, tmp_path, format_name, sound, path, others, wrong, told):
    options = WINDOW if format_name == "llamacpp-timings" else {}
    for value in others:
        assert read(format_name, write_lines(tmp_path / "x.jsonl", changed(sound, path, value)), **options).requests
    line = refusal(format_name, write_lines(tmp_path / "x.jsonl", changed(sound, path, wrong)), **options)
    assert told in line
    assert "x.jsonl: " in line
    assert len(line.replace(str(tmp_path), "")) <= 300


VLLM = metrics_line([0.921, 0.828, 0.674], 676, 837)
LLAMA = new_llamacpp_lines(516, 564, 374, wording="length")
SHORT = new_llamacpp_lines(516, 564, 374)
DRAFTED = 'draft_tokens_total{engine="0",model_name="m"}'
BY_PLACE = "I slot print_timing: id  0 | task 0 |      acc per pos = (0.809, 0.723, 0.596, 0.525)"

# format, sound lines, what is replaced, by what is sound as well, by what is not, what the line says
LINES = [
    ("vllm-log", [VLLM], "length: 3.42", ["length: 3.4", "length: 3.423"], "length: 2.42",
     "Mean acceptance length: must be 3.423: 1 and the sum of the 3 rates per position, got '2.42'"),
    ("vllm-log", [VLLM], "Accepted: 676", [], "Accepted: 200",
     "Mean acceptance length: must be in [1.239, 1.717]: 200 accepted of 837 drafted tokens, at most 3 a draft"),
    ("vllm-log", [VLLM.replace("Mean acceptance length: 3.42, ", "")], "Accepted: 676", [],
     "Accepted: 200", "Per-position acceptance rate (sum): must be in [0.2374, 0.7183]: 200 accepted of 837"),
    ("vllm-log", [VLLM], "Drafted: 837", ["Drafted: 837"], "Drafted: 9000", "676 accepted of 9000 drafted tokens"),
    ("vllm-log", [VLLM], "rate: 80.8%", ["rate: 81%", "rate: 80.76%"], "rate: 70.8%",
     "Avg Draft acceptance rate: must be 80.76: 676 accepted of 837 drafted tokens, got '70.8'"),
    ("llamacpp-log", LLAMA, "0.723", ["0.809", "0.600"], "0.850",
     "acceptance rate per position[1]: must not exceed the rate before it, 0.809: drafts are kept from their"),
    ("llamacpp-log", [*SHORT[:-1], BY_PLACE], "0.596", ["0.723"], "0.9", "must not exceed the rate before it, 0.723"),
    ("llamacpp-log", LLAMA, "length =  3.65", ["length =  3.6"], "length =  2.65", "mean len: must be in [3.5"),
    ("llamacpp-log", SHORT, "mean len =  3.65", ["mean len = 3.65"], "mean len =  4.65",
     "1 and 374 accepted tokens by the step, 564 drafted, at most 4 a step, 516 answered, got '4.65'"),
    ("llamacpp-log", SHORT, "mean len =  3.65", [], "mean len = 3..65", "mean len: must be a number, got '3..65'"),
    ("llamacpp-log", LLAMA, "acceptance = 0.66312", ["acceptance = 0.663"], "acceptance = 0.76312",
     "draft acceptance: must be 0.6631: 374 accepted of 564 drafted tokens, got '0.76312'"),
    ("llamacpp-log", llamacpp_lines(30, 40, 12), "0.30000", ["0.3"], "0.40000", "draft acceptance: must be 0.3: 12"),
    ("vllm-metrics", counters(100, [70, 50], drafted=150), f"{DRAFTED} 150", [],
     f"{DRAFTED} 100", "accepted_tokens_total: must be at most the 100 of vllm:"),
    ("trtllm-metrics", trtllm_counters([100, 90], [70, 50], by_place=True), "} 70.0", ["} 70"], "} 120.0",
     "trtllm_spec_decode_accepted_tokens_total, position 0: must be at most the 100 drafted there, got 120.0"),
]  # fmt: skip


@pytest.mark.parametrize(("format_name", "sound", "shown", "others", "wrong", "told"), LINES)
def test_lines(read, refusal, tmp_path, format_name, sound, shown, others, wrong, told):
    options = {"vllm-log": LOAD, "vllm-metrics": LOAD, "llamacpp-log": WINDOW}.get(format_name, {})
    text = "\n".join(sound)
    assert text.count(shown) == 1
    for other in [shown, *others]:
        assert read(format_name, write_text(tmp_path / "x.log", text.replace(shown, other)), **options).requests
    line = refusal(format_name, write_text(tmp_path / "x.log", text.replace(shown, wrong)), **options)
    assert told in line
    assert "x.log: " in line
    assert len(line.replace(str(tmp_path), "")) <= 300


META = {"completion_tokens": 9, "spec_verify_ct": 3, "spec_num_proposed_drafts": 9,
        "spec_correct_drafts_histogram": [0, 1, 1, 1]}  # fmt: skip


def of_sglang(*indices, tokens, **more):
    choices = [{"index": index, "meta_info": META} for index in indices]
    return {"id": "n", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (of_sglang(0, 1, tokens=17), "usage.completion_tokens: must be 18, by meta_info.completion_tokens of its 2 ch"),
        (of_sglang(0, tokens=10), "usage.completion_tokens: must be 9, by meta_info.completion_tokens of its choice"),
        (of_sglang(0, 0, tokens=18), "choices[1].index: must differ from that of the other choices: choices[0].index"),
        (of_sglang(0, 1, 1, tokens=27), "choices[2].index: must differ from that of the other choices: choices[1]."),
    ],
)
def test_choices_of_sglang(refusal, tmp_path, line, told):
    assert told in refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", line))


@pytest.mark.parametrize("key", ["speculative_decoding", "metrics", "timings", "spec_decode_metrics"])
def test_null_beside_several_choices_is_absence(read, tmp_path, key):
    line = of_sglang(0, 1, 2, tokens=27, **{key: None})
    trace = read("sglang-meta", write_lines(tmp_path / "x.jsonl", line))
    assert [request.num_tokens for request in trace.requests] == [{"drafter": 9}] * 3


def test_null_of_vllm_beside_several_choices_says_why_it_is_none(refusal, tmp_path):
    line = {"id": "a", "choices": [{"index": 0}, {"index": 1}], "metrics": {"speculative_decoding": None},
            "usage": {"prompt_tokens": 3, "completion_tokens": 20}}  # fmt: skip
    told = refusal("vllm-summary", write_lines(tmp_path / "x.jsonl", SUMMARY, line))
    assert "line 2: choices: must be of one answer (n = 1): vLLM says nothing of the drafts of several" in told


def events(*objects, end="data: [DONE]\n\n"):
    return "".join(f"data: {json.dumps(one)}\n\n" for one in objects) + end


CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "x"}}]}
LAST = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ERROR = {"error": {"message": "out of memory", "code": 500}}
SAID = "error: must not be there, the server did not answer to the end: it said this, got 'out of memory'"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (events(CHUNK, ERROR), SAID),
        (events(CHUNK, end="event: error\ndata: out of memory\n\n"), SAID),
        (events(CHUNK, end='event: error\ndata: {"message": "out of memory"}\n\n'), SAID),
        (events(CHUNK, end='error: {"message": "out of memory"}\n\n'), SAID),
        (events(CHUNK, end=""), "a streamed response that was cut, without a finish_reason and usage"),
        (events(CHUNK, LAST), "a streamed response without its last chunk, of usage; ask for stream_options"),
        (json.dumps(ERROR), "it is an error of a server; save responses"),
        (json.dumps(SUMMARY) + "\n" + json.dumps(ERROR), f"line 2: {SAID}"),
        (events(SUMMARY, ERROR), f"line 3: {SAID}"),
    ],
)
def test_a_server_that_failed_is_quoted_and_a_cut_stream_is_told(refusal, tmp_path, text, told):
    line = refusal("auto", write_text(tmp_path / "x.sse", text))
    assert told in line
    assert "out of memory" in line or "error" not in told
    assert len(line.replace(str(tmp_path), "")) <= 300


def test_the_choice_that_lacks_counts_is_named_by_its_place(refusal, tmp_path):
    line = of_sglang(0, 1, tokens=18)
    del line["choices"][1]["meta_info"]
    assert "choices[1].meta_info: must be there" in refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", line))
    one = trtllm("n", histogram=[1, 0, 3])
    line = {**one, "choices": [*one["choices"], {"index": 1}]}
    told = refusal("trtllm", write_lines(tmp_path / "x.jsonl", line))
    assert "choices[1]: must have speculative_decoding or avg_decoded_tokens_per_iter, got 'neither'" in told


def test_a_histogram_of_sglang_says_what_was_expected_and_found(refusal, tmp_path):
    told = refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", sglang("a", 6, 13, histogram=[3, 1, 1, 0, 1])))
    assert "spec_accept_histogram[4]: must be 0: no step keeps 4 tokens where drafts have at most 3" in told
