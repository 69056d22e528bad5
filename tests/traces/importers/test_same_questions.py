"""Logs of several drafters over the same prompts: one recording, matched by prompt and never by a response's id."""

import pytest
from paceline.traces.importers import ImportOptions, import_recording
from paceline.traces.rounds.store import read_rounds

from .foreign_files import plain_response, sglang, summary, timings, trtllm, write_lines

OF = {
    "vllm-summary": lambda name, k: summary(name, [2, 1, *[0] * (k - 2), 1]),
    "sglang-meta": lambda name, k: {
        **sglang(name, 4, 6 + k, histogram=[2, 1, *[0] * (k - 2), 1], window=k),
        "id": name,
    },
    "trtllm": lambda name, k: trtllm(name, histogram=[2, 1, *[0] * (k - 2), 1]),
    "llamacpp-timings": lambda name, k: {"id": name, **timings(20, 10 * k, 5)},
}
STATED = {"llamacpp-timings": {"windows": {"eagle": 2, "ngram": 4}}}


def two_files(folder, make, *, first=("why", "how"), second=("how", "why"), key="prompt", ids=("a", "b")):
    """Answers of two drafters; each file has names of its own."""
    eagle = [{**make(f"{ids[0]}{place}", 2), key: asked} for place, asked in enumerate(first)]
    ngram = [{**make(f"{ids[1]}{place}", 4), key: asked} for place, asked in enumerate(second)]
    return [write_lines(folder / "eagle.jsonl", *eagle), write_lines(folder / "ngram.jsonl", *ngram)]


@pytest.mark.parametrize("format_name", OF)
@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a")])
def test_two_drafters_meet_in_every_format_by_their_prompts(tmp_path, format_name, ids):
    files = two_files(tmp_path, OF[format_name], ids=ids)
    options = ImportOptions(**STATED.get(format_name, {}))
    import_recording(format_name, files, tmp_path / "x.trace", options)
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
        ("prompt", ["why", "how"]),
        ("prompt", [["why"], ["how"]]),
        ("prompt", [[1, 2, 3], [1, 2, 4]]),
        ("prompt_token_ids", [[1, 2, 3], [1, 2, 4]]),
        ("input_ids", [[1], [2]]),
        ("request", [{"prompt": "why"}, {"prompt": "how"}]),
    ],
)
def test_prompts_are_texts_messages_or_tokens(read, tmp_path, key, prompts):
    files = two_files(tmp_path, OF["vllm-summary"], first=prompts, second=prompts[::-1], key=key)
    trace = read("auto", *files)
    assert [[*request.rounds] for request in trace.requests] == [["eagle", "ngram"]] * 2


def test_names_of_the_user_come_first_and_tell_drafters_apart(read, tmp_path):
    files = two_files(tmp_path, OF["vllm-summary"])
    trace = read("auto", *files, names={"eagle.jsonl": "e3", "ngram.jsonl": "pld"})
    assert trace.meta.drafter_names == ("e3", "pld")
    assert len(trace.requests) == 2
    # Of one name they are one drafter's, however often it was asked.
    trace = read("auto", *files, names={"eagle.jsonl": "e3", "ngram.jsonl": "e3"})
    assert trace.meta.drafter_names == ("e3",)
    assert len(trace.requests) == 4


def test_files_of_other_prompts_are_more_answers_of_one_drafter(read, tmp_path):
    files = two_files(tmp_path, OF["vllm-summary"], second=("who", "where"))
    trace = read("auto", *files)
    assert trace.meta.drafter_names == ("drafter",)
    assert len(trace.requests) == 4


def test_answers_that_some_file_lacks_and_the_target_alone(read, tmp_path):
    make = OF["vllm-summary"]
    files = two_files(tmp_path, make, first=("why", "how"), second=("how", "who"))
    files.append(write_lines(tmp_path / "plain.jsonl", {**plain_response("p"), "prompt": "why"}, plain_response("q")))
    trace = read("auto", *files)
    found = {request.request_id: sorted(request.num_tokens) for request in trace.requests}
    assert found == {"a0": ["", "eagle"], "a1": ["eagle", "ngram"], "b1": ["ngram"], "q": [""]}
    assert trace.meta.drafter_names == ("eagle", "ngram")
    assert any(note.startswith("1 answers stand without their prompt") for note in trace.meta.notes)
    assert any("requests were not answered by every method" in note for note in trace.meta.notes)


def test_an_id_that_another_question_has_elsewhere(read, tmp_path):
    files = two_files(tmp_path, OF["vllm-summary"], first=("why", "how"), second=("who", "why"), ids=("a", "a"))
    trace = read("auto", *files)
    assert [request.request_id for request in trace.requests] == ["a0", "a1", "ngram/a0"]


def test_each_choice_meets_that_of_its_number(read, tmp_path):
    meta = {"completion_tokens": 8, "spec_verify_ct": 4, "spec_correct_drafts_histogram": [2, 1, 1]}
    for name, file in (("a", "eagle"), ("b", "ngram")):
        choices = [{"index": index, "meta_info": meta} for index in (0, 1)]
        write_lines(tmp_path / f"{file}.jsonl", {"id": name, "prompt": "why", "choices": choices, "usage": {}})
    trace = read("auto", tmp_path / "eagle.jsonl", tmp_path / "ngram.jsonl", windows={"eagle": 2, "ngram": 2})
    assert [(request.request_id, len(request.rounds)) for request in trace.requests] == [("a/0", 2), ("a/1", 2)]


def test_what_is_ambiguous_is_refused_by_name(refusal, tmp_path):
    make = OF["vllm-summary"]
    told = refusal("auto", *two_files(tmp_path, make, first=("why", "how", "why")))
    assert told.endswith(
        "eagle.jsonl: prompt: must be asked once in a file, to be found again in the other files, got 'the same on "
        "lines 1 and 3'"
    )
    named = {"names": {"eagle.jsonl": "e", "ngram.jsonl": "n"}}
    eagle, ngram = two_files(tmp_path, make)
    write_lines(ngram, {**make("b", 4), "prompt_token_ids": [1, 2]})
    told = refusal("auto", eagle, ngram, **named)
    assert "prompt: must be in all files, to tell which answer the same, got 'prompt_token_ids'" in told
    (tmp_path / "other").mkdir()
    twice = write_lines(tmp_path / "other" / "eagle.jsonl", {**make("c", 4), "prompt": "why"})
    told = refusal("auto", eagle, twice)
    assert "drafter: must differ from file to file where they answer the same prompts (`names` FILE=NAME)" in told
