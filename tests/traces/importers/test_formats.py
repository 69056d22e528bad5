"""All formats alike: how their files are told, written and read again, and what is said of drafts; several drafters."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from paceline.traces import TraceFormatError, importers
from paceline.traces.importers import ImportOptions, choose_format, format_names, import_recording, read_recording
from paceline.traces.importers.formats import FORMATS, detect, format_named
from paceline.traces.rounds.store import read_rounds

from .foreign_files import (
    STATED,
    answer,
    counters,
    frontier,
    metrics_line,
    one_file_each,
    plain_response,
    positions,
    response,
    sglang,
    sglang_bench,
    summary,
    timings,
    trtllm,
    vllm_bench,
    write,
    write_lines,
)

SHEET = Path(importers.__file__).with_name("formats.toml")


@pytest.mark.parametrize("name", format_names())
def test_a_format_is_told_by_its_files_written_and_read_again(tmp_path, name):
    files, options = one_file_each(tmp_path)[name], ImportOptions(**STATED.get(name, {}))
    assert detect(files).name == detect(files[::-1]).name == name
    assert choose_format("auto", files) is format_named(name)
    wanted = read_recording(name, files, options)
    meta = import_recording(name, files, tmp_path / "t.trace", options)
    found = read_rounds(tmp_path / "t.trace")
    assert found.meta == wanted.meta == meta
    for one, other in zip(found.requests, wanted.requests, strict=True):
        for field in ("request_id", "tag", "prompt_tokens", "prompt", "output"):
            assert getattr(one, field) == getattr(other, field)
        for field in ("num_tokens", "wall_s", "prefill_s"):
            assert dict(getattr(one, field)) == dict(getattr(other, field))
        for drafter, rounds in other.rounds.items():
            for column in (
                ("start", "accepted", "drafted", "draft_s", "verify_s", "placed") if len(rounds.start) else ()
            ):
                here, there = getattr(one.rounds[drafter], column), getattr(rounds, column)
                assert here is there is None or np.array_equal(here, there, equal_nan=here.dtype.kind == "f")


def test_the_list_of_formats(tmp_path):
    assert set(format_names()) == set(tomllib.loads(SHEET.read_text())) == set(one_file_each(tmp_path))
    for known in FORMATS:
        assert known.words
        assert known.keys
        assert [note.split(":")[0] for note in known.notes] == ["Exact", "Unknown"]
        assert all(note.endswith(".") and "\n" not in note for note in known.notes)


def test_files_of_two_formats_or_of_two_at_once(tmp_path):
    files = one_file_each(tmp_path)
    with pytest.raises(TraceFormatError, match=r"pos\.jsonl: format: must be vllm-detailed as the files before it"):
        detect([*files["vllm-detailed"], *files["positions"]])
    with pytest.raises(TraceFormatError, match=r"pos\.jsonl: format: must be eagle-timed"):
        detect([files["eagle-timed"][1], files["eagle-timed"][0], *files["positions"]])
    both = write_lines(tmp_path / "both.jsonl", {"id": 1, "drafters": {}, "question_id": 1, "choices": []})
    with pytest.raises(TraceFormatError, match="must be named, the file could be spec-bench or positions"):
        detect([both])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: format_named("csv"), r"format must be a known one .known are eagle-timed, spec-bench, "),
        (lambda: choose_format("auto", []), "files must name at least one file"),
        (
            lambda: choose_format("spec-bench", [Path("x"), Path("y"), Path("x")]),
            "files must be given once each, got 'x'",
        ),
        (lambda: choose_format("csv", [Path("x")]), r"format must be auto or a known one \(known are .*, got 'csv'"),
    ],
)
def test_a_format_by_name(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_requests_pass_by_one_at_a_time_and_a_failed_import_leaves_nothing(tmp_path):
    seen = []

    def watch(requests):
        for request in requests:
            seen.append(request.request_id)
            yield request

    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[1]), positions("b", draft=[2, 1]))
    import_recording("positions", [path], tmp_path / "t.trace", watch=watch)
    assert seen == ["a", "b"]
    (tmp_path / "out").mkdir()
    lines = [positions(str(number), draft=[1, 2, 1]) for number in range(50)]
    path = write_lines(tmp_path / "x.jsonl", *lines, positions("0", draft=[1]))
    with pytest.raises(TraceFormatError, match="line 51: id: must be unique, got '0'"):
        import_recording("positions", [path], tmp_path / "out" / "t.trace")
    assert list((tmp_path / "out").iterdir()) == []


# Of each format a file in which all was kept, and one in which something was refused.
KEPT = {
    "spec-bench": ([answer(1, [3, 3], [3]), answer(2, [3])], [answer(1, [3, 1], [3])]),
    "vllm-detailed": ([response("a", [3, 3], [3, 3])], [response("a", [3, 2], [3, 3])]),
    "positions": ([positions("a", draft=[3, 3, 3, 3])], [positions("a", draft=[3, 1, 3, 3])]),
    "frontier": ([frontier({"0": [3, 3]}, {"0": [2, 2]})], [frontier({"0": [3, 2]}, {"0": [2, 2]})]),
    "vllm-summary": ([summary("a", [0, 0, 0, 4])], [summary("a", [1, 0, 0, 4])]),
    "sglang-meta": ([sglang("a", 4, 17, histogram=[0, 0, 0, 4])], [sglang("a", 4, 14, histogram=[1, 0, 0, 3])]),
    "trtllm": ([trtllm("a", histogram=[0, 0, 4])], [trtllm("a", histogram=[1, 0, 3])]),
    "llamacpp-timings": ([timings(26, 20, 20)], [timings(26, 20, 19)]),
    "vllm-bench": ([vllm_bench([1.0, 1.0])], [vllm_bench([1.0, 0.9])]),
    "sglang-bench": ([sglang_bench(5)], [sglang_bench(4.9)]),
    "vllm-metrics": (
        counters(100, [100, 100], requests=4, tokens=304),
        counters(100, [100, 99], requests=4, tokens=303),
    ),
    "vllm-log": ([metrics_line([1.0, 1.0], 200, 200)], [metrics_line([1.0, 0.5], 150, 200)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_log_without_a_refusal_is_called_unlikely(read, tmp_path, name):
    for number, content in enumerate(KEPT[name]):
        trace = read(name, write(tmp_path / f"{number}.txt", *content), **STATED.get(name, {}))
        said = [note for note in trace.meta.notes if "drafted was ever refused" in note]
        words = f"nothing that {trace.meta.drafters[0].name} drafted was ever refused"
        assert [note[: len(words)] for note in said] == ([] if number else [words])
        assert not any("tells of drafts" in note for note in trace.meta.notes)


def test_a_log_without_drafts_is_called_one(read, tmp_path):
    trace = read("llamacpp-timings", write_lines(tmp_path / "x.jsonl", timings(9), timings(12)))
    assert "nothing in these files tells of drafts: every answer is taken to be the target's alone" in trace.meta.notes


# -- a skipped line leaves nothing


BAD = {"id": "bad", "metrics": {}}
DRAWN = sglang("bad", 5, 4, histogram=[1, 1, 1, 2])  # drawn, and then found to emit more than the answer has


def test_lines_are_blamed_on_their_own_file(read, refusal, tmp_path):
    sound = [response(name, [1], [2]) for name in "abcd"]
    fine = write_lines(tmp_path / "fine.jsonl", sound[0], BAD, sound[1])
    bad = write_lines(tmp_path / "bad.jsonl", BAD, BAD)
    for files in ((fine, bad), (bad, fine)):
        told = refusal("vllm-detailed", *files, skip_bad_lines=True)
        assert told.startswith(f"{bad}: line 1: speculative_decoding: ")
        assert "(all lines are bad)" in told
    other = write_lines(tmp_path / "other.jsonl", sound[2], BAD, BAD)
    notes = read("vllm-detailed", fine, other, skip_bad_lines=True).meta.notes
    assert notes[-1].startswith(f"3 bad lines were skipped (--skip-bad-lines); the first: {fine}: line 2: ")


def test_a_skipped_line_leaves_no_drafter_its_name_free_and_nothing_that_an_option_could_mean(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", DRAWN, sglang("bad", 0, 5))
    trace = read("sglang-meta", path, skip_bad_lines=True)
    assert trace.meta.drafters == ()
    assert [request.request_id for request in trace.requests] == ["bad"]
    for options, told in (
        ({"seed": 3}, "`seed` must be left out: nothing of this log is drawn"),
        ({"names": {"drafter": "mine"}}, "`names` must name a file or a method of the files"),
        ({"windows": {"drafter": 3}}, "`windows` must name a drafter of none"),
    ):
        with pytest.raises(ValueError, match=told):
            read("sglang-meta", path, skip_bad_lines=True, **options)
    rows = [plain_response("p"), response("a", [3], [2]), response("a", [1], [2])]
    assert len(read("vllm-detailed", write_lines(tmp_path / "y.jsonl", *rows), skip_bad_lines=True).requests) == 2


# -- several drafters over the same prompts: matched by prompt and never by a response's id


OF = {
    "vllm-summary": lambda name, k: summary(name, [2, 1, *[0] * (k - 2), 1]),
    "sglang-meta": lambda name, k: {
        "id": name,
        **sglang(name, 4, 6 + k, histogram=[2, 1, *[0] * (k - 2), 1], window=k),
    },
    "trtllm": lambda name, k: trtllm(name, histogram=[2, 1, *[0] * (k - 2), 1]),
    "llamacpp-timings": lambda name, k: {"id": name, **timings(20, 10 * k, 5)},
}
WINDOWS = {"llamacpp-timings": {"windows": {"eagle": 2, "ngram": 4}}}
SUMMARY = OF["vllm-summary"]


def two_files(folder, make=SUMMARY, *, first=("why", "how"), second=("how", "why"), key="prompt", ids=("a", "b")):
    """Answers of two drafters; each file has names of its own."""
    eagle = [{**make(f"{ids[0]}{place}", 2), key: asked} for place, asked in enumerate(first)]
    ngram = [{**make(f"{ids[1]}{place}", 4), key: asked} for place, asked in enumerate(second)]
    return [write_lines(folder / "eagle.jsonl", *eagle), write_lines(folder / "ngram.jsonl", *ngram)]


@pytest.mark.parametrize("name", OF)
@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a")])
def test_two_drafters_meet_in_every_format_by_their_prompts(tmp_path, name, ids):
    files = two_files(tmp_path, OF[name], ids=ids)
    import_recording(name, files, tmp_path / "x.trace", ImportOptions(**WINDOWS.get(name, {})))
    trace = read_rounds(tmp_path / "x.trace")
    assert [(info.name, info.window) for info in trace.meta.drafters] == [("eagle", 2), ("ngram", 4)]
    assert [request.request_id for request in trace.requests] == ["a0", "a1"]
    assert all(set(request.rounds) == {"eagle", "ngram"} for request in trace.requests)
    assert all(request.prompt_tokens > 0 for request in trace.requests)
    assert "files that answer the same prompts are a drafter each" in trace.meta.notes


@pytest.mark.parametrize(
    ("key", "prompts"),
    [
        ("messages", [[{"role": "user", "content": "why"}], [{"role": "user", "content": "how"}]]),
        ("prompt", [["why"], ["how"]]),
        ("prompt", [[1, 2, 3], [1, 2, 4]]),
        ("prompt_token_ids", [[1, 2, 3], [1, 2, 4]]),
        ("input_ids", [[1], [2]]),
        ("request", [{"prompt": "why"}, {"prompt": "how"}]),
    ],
)
def test_prompts_are_texts_messages_or_tokens(read, tmp_path, key, prompts):
    trace = read("auto", *two_files(tmp_path, first=prompts, second=prompts[::-1], key=key))
    assert [[*request.rounds] for request in trace.requests] == [["eagle", "ngram"]] * 2


@pytest.mark.parametrize(
    ("files", "names", "drafters", "ids"),
    [
        ({}, ("e3", "pld"), ("e3", "pld"), ["a0", "a1"]),
        ({}, ("e3", "e3"), ("e3",), ["a0", "a1", "b0", "b1"]),  # of one name they are one drafter's
        ({"second": ("who", "where")}, (), ("drafter",), ["a0", "a1", "b0", "b1"]),
        ({"second": ("who", "why"), "ids": ("a", "a")}, (), ("eagle", "ngram"), ["a0", "a1", "ngram/a0"]),
    ],
)
def test_names_of_the_user_come_first_and_tell_drafters_apart(read, tmp_path, files, names, drafters, ids):
    paths = two_files(tmp_path, **files)
    trace = read("auto", *paths, names=dict(zip(("eagle.jsonl", "ngram.jsonl"), names, strict=False)))
    assert trace.meta.drafter_names == drafters
    assert [request.request_id for request in trace.requests] == ids


def test_answers_that_some_file_lacks_and_the_target_alone(read, tmp_path):
    files = two_files(tmp_path, second=("how", "who"))
    files.append(write_lines(tmp_path / "plain.jsonl", {**plain_response("p"), "prompt": "why"}, plain_response("q")))
    trace = read("auto", *files)
    found = {request.request_id: sorted(request.num_tokens) for request in trace.requests}
    assert found == {"a0": ["", "eagle"], "a1": ["eagle", "ngram"], "b1": ["ngram"], "q": [""]}
    assert trace.meta.drafter_names == ("eagle", "ngram")
    assert any(note.startswith("1 answers stand without their prompt") for note in trace.meta.notes)
    assert any("requests were not answered by every method" in note for note in trace.meta.notes)


def test_what_is_ambiguous_is_refused_by_name(refusal, tmp_path):
    told = refusal("auto", *two_files(tmp_path, first=("why", "how", "why")))
    rule = "prompt: must be asked once in a file, to be found again in the other files, got 'the same on lines 1 and 3'"
    assert told.endswith(f"eagle.jsonl: {rule}")
    eagle, ngram = two_files(tmp_path)
    write_lines(ngram, {**SUMMARY("b", 4), "prompt_token_ids": [1, 2]})
    told = refusal("auto", eagle, ngram, names={"eagle.jsonl": "e", "ngram.jsonl": "n"})
    assert "prompt: must be in all files, to tell which answer the same, got 'prompt_token_ids'" in told
    (tmp_path / "other").mkdir()
    twice = write_lines(tmp_path / "other" / "eagle.jsonl", {**SUMMARY("c", 4), "prompt": "why"})
    told = refusal("auto", eagle, twice)
    assert "drafter: must differ from file to file where they answer the same prompts (`names` FILE=NAME)" in told


# -- responses of n > 1 choices: a request each


FIRST = {"completion_tokens": 9, "spec_verify_ct": 3, "spec_num_proposed_drafts": 9,
         "spec_correct_drafts_histogram": [0, 1, 1, 1]}  # fmt: skip
SECOND = {"completion_tokens": 9, "spec_verify_ct": 8, "spec_num_proposed_drafts": 24,
          "spec_correct_drafts_histogram": [8, 0, 0, 0]}  # fmt: skip


def of_sglang(*metas, **more):
    choices = [{"index": index, "meta_info": meta} for index, meta in enumerate(metas)]
    tokens = sum(meta.get("completion_tokens", 0) for meta in metas)
    return {"id": "n", "choices": choices, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}, **more}


def test_each_choice_of_sglang_is_a_request_with_the_prompt_of_usage(read, tmp_path):
    trace = read("auto", write_lines(tmp_path / "x.jsonl", of_sglang(FIRST, SECOND)))
    assert [(one.request_id, one.prompt_tokens) for one in trace.requests] == [("n/0", 9), ("n/1", 9)]
    assert [request.num_tokens for request in trace.requests] == [{"drafter": 9}, {"drafter": 9}]
    assert [len(request.rounds["drafter"].start) for request in trace.requests] == [3, 8]
    assert any(note.startswith("2 answers stand beside others in one response") for note in trace.meta.notes)
    trace = read("auto", write_lines(tmp_path / "x.jsonl", of_sglang(FIRST)))
    assert [(request.request_id, request.prompt_tokens) for request in trace.requests] == [("n", 9)]
    assert not any("beside others" in note for note in trace.meta.notes)


def test_each_choice_meets_that_of_its_number(read, tmp_path):
    meta = {"completion_tokens": 8, "spec_verify_ct": 4, "spec_correct_drafts_histogram": [2, 1, 1]}
    for name, file in (("a", "eagle"), ("b", "ngram")):
        choices = [{"index": index, "meta_info": meta} for index in (0, 1)]
        write_lines(tmp_path / f"{file}.jsonl", {"id": name, "prompt": "why", "choices": choices, "usage": {}})
    trace = read("auto", tmp_path / "eagle.jsonl", tmp_path / "ngram.jsonl", windows={"eagle": 2, "ngram": 2})
    assert [(request.request_id, len(request.rounds)) for request in trace.requests] == [("a/0", 2), ("a/1", 2)]


def test_streamed_choices_are_kept_apart(read, tmp_path):
    whole = of_sglang(FIRST, SECOND)
    chunks = [{"id": "n", "choices": [{"index": index, "delta": {"content": "x"}}]} for index in (0, 1, 1, 0)]
    chunks += [{"id": "n", "choices": [choice]} for choice in whole["choices"][::-1]]
    chunks += [{"id": "n", "choices": [], "usage": whole["usage"]}]
    found = [{"text": "", "index": index, "meta_info": {**meta, "id": name, "prompt_tokens": 9}}
             for index, name, meta in ((0, "a", FIRST), (1, "b", SECOND))]  # fmt: skip
    early = [{**one, "meta_info": {"id": one["meta_info"]["id"], "completion_tokens": 1}} for one in found]
    path = tmp_path / "x.sse"
    for sent, end, ids in (
        (chunks, "data: [DONE]\n\n", ["n/0", "n/1"]),
        ([*early, *early[::-1], *found], "", ["a", "b"]),
    ):
        path.write_text("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in sent) + end)
        requests = read("auto", path).requests
        assert [(one.request_id, len(one.rounds["drafter"].start)) for one in requests] == [(ids[0], 3), (ids[1], 8)]


def test_each_choice_of_others_is_a_request(read, tmp_path):
    one, other = trtllm("n", histogram=[1, 0, 3]), trtllm("n", histogram=[4, 0, 0])
    line = {**one, "choices": [*one["choices"], {**other["choices"][0], "index": 1}]}
    line["usage"] = {"prompt_tokens": 5, "completion_tokens": 16}
    trace = read("auto", write_lines(tmp_path / "x.jsonl", line))
    assert [(one.request_id, one.prompt_tokens) for one in trace.requests] == [("n/0", 5), ("n/1", 5)]
    assert [one.num_tokens["drafter"] for one in trace.requests] == [11, 5]
    assert any(note.startswith("2 answers have no count of tokens of their own") for note in trace.meta.notes)
    # A draft of vLLM's change kept steps in each choice.
    stats = [{"per_step_accepted": steps, "per_step_drafted": [2] * len(steps)} for steps in ([2, 0], [1])]
    choices = [{"index": index, "speculative_decoding_stats": one} for index, one in enumerate(stats)]
    line = {"id": "a", "choices": choices, "usage": {"prompt_tokens": 4, "completion_tokens": 8}}
    trace = read("auto", write_lines(tmp_path / "x.jsonl", line))
    assert [one.rounds["drafter"].accepted.tolist() for one in trace.requests] == [[2, 0], [1]]
    assert [one.num_tokens["drafter"] for one in trace.requests] == [5, 3]


@pytest.mark.parametrize("key", ["speculative_decoding", "metrics", "timings", "spec_decode_metrics"])
def test_null_beside_several_choices_is_absence(read, tmp_path, key):
    line = of_sglang(FIRST, FIRST, FIRST, **{key: None})
    trace = read("sglang-meta", write_lines(tmp_path / "x.jsonl", line))
    assert [request.num_tokens for request in trace.requests] == [{"drafter": 9}] * 3
