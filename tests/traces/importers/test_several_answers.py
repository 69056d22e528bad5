"""Responses of n > 1 choices: a request each, in every format; what is counted of all together is refused by name."""

import json

import pytest

from .foreign_files import summary, timings, trtllm, write_lines


def of_sglang(*metas, **more):
    choices = [{"index": index, "meta_info": meta} for index, meta in enumerate(metas)]
    tokens = sum(meta.get("completion_tokens", 0) for meta in metas)
    return {"id": "n", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


FIRST = {"completion_tokens": 9, "spec_verify_ct": 3, "spec_num_proposed_drafts": 9,
         "spec_correct_drafts_histogram": [0, 1, 1, 1]}  # fmt: skip
SECOND = {"completion_tokens": 9, "spec_verify_ct": 8, "spec_num_proposed_drafts": 24,
          "spec_correct_drafts_histogram": [8, 0, 0, 0]}  # fmt: skip


def test_each_choice_of_sglang_is_a_request_with_the_prompt_of_usage(read, tmp_path):
    trace = read("auto", write_lines(tmp_path / "x.jsonl", of_sglang(FIRST, SECOND)))
    assert [request.request_id for request in trace.requests] == ["n/0", "n/1"]
    assert [request.prompt_tokens for request in trace.requests] == [9, 9]
    assert [request.num_tokens for request in trace.requests] == [{"drafter": 9}, {"drafter": 9}]
    assert [len(request.rounds["drafter"].start) for request in trace.requests] == [3, 8]
    assert trace.meta.drafters[0].window == 3
    assert any(note.startswith("2 answers stand beside others in one response") for note in trace.meta.notes)


def test_one_choice_stays_a_request_under_its_own_name(read, tmp_path):
    trace = read("auto", write_lines(tmp_path / "x.jsonl", of_sglang(FIRST)))
    assert [(request.request_id, request.prompt_tokens) for request in trace.requests] == [("n", 9)]
    assert not any("beside others" in note for note in trace.meta.notes)


def test_streamed_choices_are_kept_apart(read, tmp_path):
    whole = of_sglang(FIRST, SECOND)
    chunks = [{"id": "n", "choices": [{"index": index, "delta": {"content": "x"}}]} for index in (0, 1, 1, 0)]
    chunks += [{"id": "n", "choices": [choice]} for choice in whole["choices"][::-1]]
    chunks += [{"id": "n", "choices": [], "usage": whole["usage"]}]
    path = tmp_path / "x.sse"
    path.write_text("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n")
    trace = read("auto", path)
    assert [len(request.rounds["drafter"].start) for request in trace.requests] == [3, 8]


def test_answers_that_sglang_streams_side_by_side_are_kept_apart(read, tmp_path):
    path = tmp_path / "x.sse"
    found = [{"text": "", "index": index, "meta_info": {**meta, "id": name, "prompt_tokens": 9}}
             for index, name, meta in ((0, "a", FIRST), (1, "b", SECOND))]  # fmt: skip
    early = [{**one, "meta_info": {"id": one["meta_info"]["id"], "completion_tokens": 1}} for one in found]
    path.write_text("".join(f"data: {json.dumps(one)}\n\n" for one in [*early, *early[::-1], *found]))
    trace = read("auto", path)
    assert [(one.request_id, len(one.rounds["drafter"].start)) for one in trace.requests] == [("a", 3), ("b", 8)]


def test_each_choice_of_tensorrt_llm_is_a_request(read, refusal, tmp_path):
    one, other = trtllm("n", histogram=[1, 0, 3]), trtllm("n", histogram=[4, 0, 0])
    line = {**one, "choices": [*one["choices"], {**other["choices"][0], "index": 1}]}
    line["usage"] = {"prompt_tokens": 5, "completion_tokens": 16}
    trace = read("auto", write_lines(tmp_path / "x.jsonl", line))
    assert [(one.request_id, one.prompt_tokens) for one in trace.requests] == [("n/0", 5), ("n/1", 5)]
    assert [one.num_tokens["drafter"] for one in trace.requests] == [11, 5]
    assert any(note.startswith("2 answers have no count of tokens of their own") for note in trace.meta.notes)
    mean = trtllm("n", mean=2.5, tokens=50)
    path = write_lines(
        tmp_path / "y.jsonl", {**mean, "choices": [*mean["choices"], {**mean["choices"][0], "index": 1}]}
    )
    told = refusal("trtllm", path, windows={"drafter": 4})
    assert "usage.completion_tokens: must be there beside avg_decoded_tokens_per_iter, and of one answer alone" in told


TWO = [{"index": 0}, {"index": 1}]


@pytest.mark.parametrize(
    ("format_name", "line", "field"),
    [
        ("vllm-summary", {**summary("a", [3, 2]), "choices": TWO}, "metrics.speculative_decoding"),
        (
            "vllm-detailed",
            {"id": "a", "choices": TWO, "speculative_decoding": {"per_step_accepted": [1]}},
            "speculative_decoding",
        ),
        ("vllm-summary", {"id": "a", "choices": TWO, "spec_decode_metrics": {}}, "spec_decode_metrics"),
        ("llamacpp-timings", {**timings(9, 9, 3), "choices": TWO}, "timings"),
    ],
)
def test_what_counts_all_answers_together_is_refused_by_name(refusal, read, tmp_path, format_name, line, field):
    path = write_lines(tmp_path / "x.jsonl", line)
    told = refusal(format_name, path)
    assert f"line 1: {field}" in told
    assert "must stand beside one choice (n = 1): it is of the request as a whole" in told
    assert told.endswith("got '2 choices'")
    sound = {**summary("b", [3, 2]), "choices": TWO[:1]} if format_name != "llamacpp-timings" else timings(9)
    if format_name != "vllm-detailed":
        trace = read(format_name, write_lines(tmp_path / "y.jsonl", line, sound), skip_bad_lines=True)
        assert len(trace.requests) == 1


def test_answers_of_drafts_of_vllm_are_told_apart(read, tmp_path):
    """A draft of the change kept steps in each choice."""
    stats = [{"per_step_accepted": steps, "per_step_drafted": [2] * len(steps)} for steps in ([2, 0], [1])]
    choices = [{"index": index, "speculative_decoding_stats": one} for index, one in enumerate(stats)]
    line = {"id": "a", "choices": choices, "usage": {"prompt_tokens": 4, "completion_tokens": 8}}
    trace = read("auto", write_lines(tmp_path / "x.jsonl", line))
    assert [one.rounds["drafter"].accepted.tolist() for one in trace.requests] == [[2, 0], [1]]
    assert [one.num_tokens["drafter"] for one in trace.requests] == [5, 3]


def test_a_choice_that_is_none_is_refused(refusal, tmp_path):
    line = {"id": "a", "choices": [{"index": 0, "meta_info": {"spec_verify_ct": 1}}, 7], "usage": {}}
    assert "choices[1]: must be an object, got 7" in refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", line))


def test_an_answer_whose_tokens_nobody_counts_is_refused(refusal, tmp_path):
    metas = [{"spec_verify_ct": 3, "spec_correct_drafts_histogram": [3]}, FIRST]
    told = refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", of_sglang(*metas)))
    assert "usage.completion_tokens: must be there, got 'nothing'" in told
