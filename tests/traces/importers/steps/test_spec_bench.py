import math
import re

import numpy as np
import pytest

from ..foreign_files import answer, write_lines


@pytest.fixture
def three(tmp_path):
    """Two questions under the target alone, a draft model and EAGLE; the second one has two turns."""
    plain = [answer(1, [1] * 8, method="vanilla"), answer(2, [1] * 3, [1] * 2, method="vanilla", category="qa")]
    sps = [answer(1, [3, 1, 4], wall_s=0.4), answer(2, [1, 2], [2], category="qa")]
    eagle = [answer(2, [3], [1, 1], method="eagle", category="qa"), answer(1, [5, 4], method="eagle")]
    return [write_lines(tmp_path / f"{name}.jsonl", *lines) for name, lines in (("a", plain), ("b", sps), ("c", eagle))]


def test_methods_over_the_same_questions_merge(read, three):
    trace = read("spec-bench", *three)
    assert [drafter.name for drafter in trace.meta.drafters] == ["sps", "eagle"]
    assert [request.request_id for request in trace.requests] == ["1/1", "2/1", "2/2"]
    assert [request.tag for request in trace.requests] == ["math", "qa", "qa"]
    first = trace.requests[0]
    assert first.num_tokens == {"": 8, "sps": 8, "eagle": 9}
    assert first.wall_s == {"": 0.5, "sps": 0.4, "eagle": 0.5}
    assert set(first.rounds) == {"sps", "eagle"}
    sps = first.rounds["sps"]
    assert (sps.start.tolist(), sps.accepted.tolist(), sps.drafted.tolist()) == ([0, 3, 4], [2, 0, 3], [-1, -1, -1])
    assert sps.draft_s is None
    assert trace.requests[2].rounds["eagle"].start.tolist() == [1, 2]
    assert [drafter.prefilled for drafter in trace.meta.drafters] == [False, True]


def test_answers_that_differ_and_that_are_missing_are_said(read, three, tmp_path):
    told = read("spec-bench", *three).meta.notes[2:]
    assert told[0].startswith("1 answers end with a step of which the file counts only the token before it")
    assert told[1:] == ("2 requests have answers whose length depends on the method",)
    one = write_lines(tmp_path / "medusa.jsonl", answer(1, [3, 3, 2], method="medusa"))
    assert read("spec-bench", three[0], one).meta.notes[2:] == ("2 requests were not answered by every method",)


def test_drafters_windows_and_who_reads_tokens(read, three):
    sps, eagle = read("spec-bench", *three).meta.drafters
    assert (sps.window, sps.by_start) == (3, False)
    assert (eagle.window, eagle.by_start) == (4, True)
    sps, eagle = read("spec-bench", *three, token_drafters=frozenset({"eagle"}), windows={"sps": 6}).meta.drafters
    assert (sps.window, eagle.by_start) == (6, False)


def test_a_window_given_is_what_every_round_drafted(read, three):
    request = read("spec-bench", *three, windows={"sps": 6}).requests[0]
    assert request.rounds["sps"].drafted.tolist() == [6, 6, 6]
    assert request.rounds["eagle"].drafted.tolist() == [-1, -1]


def test_a_round_of_the_whole_window_is_censored(read, three):
    rounds = read("spec-bench", *three).requests[0].rounds["sps"]
    assert rounds.censored(3).tolist() == [False, False, True]


def test_names(read, three, tmp_path):
    named = read("spec-bench", *three, names={"b.jsonl": "small", "eagle": "tree"})
    assert [drafter.name for drafter in named.meta.drafters] == ["small", "tree"]
    assert named.meta.drafters[0].by_start is False
    other = write_lines(tmp_path / "toy.jsonl", answer(1, [3, 1], method="of our own"))
    assert read("spec-bench", other).meta.drafters[0].name == "toy-7b-of-our-own-float16"
    by_file = write_lines(tmp_path / "toy_medusa.jsonl", {**answer(1, [3, 1]), "model_id": None})
    assert read("spec-bench", by_file).meta.drafters[0].name == "medusa"


def test_a_file_whose_steps_emit_one_token_is_the_target_alone(read, refusal, three, tmp_path):
    trace = read("spec-bench", three[0])
    assert trace.meta.drafters == ()
    assert trace.requests[0].num_tokens == {"": 8}
    bare = answer(1, [1] * 4, accept_lengths=None, decoding_steps=None, idxs=[3])
    assert read("spec-bench", write_lines(tmp_path / "bare.jsonl", bare)).requests[0].num_tokens == {"": 4}
    assert "target alone, got 'slow'" in refusal("spec-bench", three[0], names={"a.jsonl": "slow"})


def test_other_spellings(read, tmp_path):
    line = answer(7, [2, 1], key="accept_lengths:", decoding_steps=None, idxs=[1])
    del line["category"]
    del line["choices"][0]["wall_time"]
    request = read("spec-bench", write_lines(tmp_path / "x.jsonl.gz", line)).requests[0]
    assert (request.request_id, request.tag, request.num_tokens) == ("7/1", "", {"sps": 3})
    assert request.wall_s == {}
    assert math.isnan(request.seconds("sps"))


def test_a_last_step_beyond_the_text_is_cut_and_said(read, tmp_path):
    line = answer(1, [3, 4], new_tokens=[5])
    trace = read("spec-bench", write_lines(tmp_path / "x.jsonl", line))
    rounds = trace.requests[0].rounds["sps"]
    assert (rounds.accepted.tolist(), rounds.drafted.tolist()) == ([2, 2], [-1, 2])
    assert rounds.censored(3).tolist() == [False, True]
    assert any(note.startswith("1 rounds reached beyond the end") for note in trace.meta.notes)


def test_further_samples_are_requests_and_meet_those_of_other_methods(read, tmp_path):
    line, other = answer(1, [3, 1], [2]), answer(1, [1, 2], [4, 1])
    line["choices"] += other["choices"]
    again = answer(1, [2, 2], [2, 1], method="eagle")
    again["choices"] += answer(1, [3], [1], method="eagle")["choices"]
    files = [write_lines(tmp_path / name, one) for name, one in (("x.jsonl", line), ("y.jsonl", again))]
    trace = read("spec-bench", *files)
    assert [request.request_id for request in trace.requests] == ["1/1", "1/2", "1/1/1", "1/2/1"]
    assert [request.rounds["sps"].accepted.tolist() for request in trace.requests] == [[2, 0], [1], [0, 1], [3, 0]]
    assert all(set(request.rounds) == {"sps", "eagle"} for request in trace.requests)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            answer(1, [3, 1], new_tokens=[5]),
            "accept_lengths: must add up to the 5 new_tokens of turn 1, but for the last",
        ),
        (answer(1, [3, 1], new_tokens=[3]), "got 4"),
        (answer(1, [3, 1], decoding_steps=[3]), "must hold one entry for each of the 3 steps"),
        (answer(1, [3, 1], new_tokens=[2, 2]), "new_tokens: must hold 1 turns"),
        (answer(1, [3, 1], wall_time=[1.0, 1.0]), "wall_time: must hold 1 turns"),
        (answer(1, [3, 1], wall_time=[0]), "wall_time[0]: must be seconds in [1e-12, 1e+09], got 0"),
        (
            answer(1, [3, 1], accept_lengths=[4, 0]),
            "accept_lengths[1]: must be a whole number in [1, 2147483647], got 0",
        ),
        (answer(1, [3, 1], accept_lengths=[3, True]), "accept_lengths[1]: must be a whole number"),
        (answer(1, [3, 1], accept_lengths=[3, 1.0]), "accept_lengths[1]: must be a whole number"),
        (answer(1, [3, 1], accept_lengths="31"), "accept_lengths: must be a list, got '31'"),
        (answer(1, [3, 1], accept_lengths=None), "choices[0].window: must be stated, the log does not say how"),
        (answer(1, [3, 1], decoding_steps=[10**30]), "decoding_steps[0]: must be a whole number"),
        (answer(1), "new_tokens: must hold a turn, got 'none'"),
        ({"question_id": 1, "choices": []}, "choices: must hold an answer"),
        ({"question_id": 1, "choices": [3]}, "choices[0]: must be an object, got 3"),
        ({"choices": []}, "question_id: must be there, got 'nothing'"),
        ({**answer(1, [3, 1]), "category": "\ud800"}, "category: must be whole Unicode"),
    ],
)
def test_what_does_not_fit_is_refused_with_file_and_line(refusal, tmp_path, line, told):
    path = write_lines(tmp_path / "x.jsonl", answer(0, [2]), line)
    assert "x.jsonl: line 2: " in (found := refusal("spec-bench", path))
    assert told in found


def test_questions_come_once_and_methods_have_names_of_their_own(refusal, three, tmp_path):
    twice = write_lines(tmp_path / "twice.jsonl", answer(1, [2]), answer(1, [2]))
    assert "line 2: question_id: must be unique in the file, got '1'" in refusal("spec-bench", twice)
    for path, told in ((three[1], "(`names` FILE=NAME)"), (three[0], "both the target alone")):
        copied = tmp_path / f"copy-{path.name}"
        copied.write_bytes(path.read_bytes())
        assert told in refusal("spec-bench", path, copied)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"names": {"nobody": "x"}}, "that no other key names, got 'nobody'"),
        ({"windows": {"nobody": 3}}, "`windows` must name a drafter of sps, eagle, got 'nobody'"),
        ({"token_drafters": frozenset({"nobody"})}, "`token_drafters` must name a drafter"),
        ({"windows": {"sps": 2}}, "must hold rounds within `windows` sps=2, got 3"),
        ({"windows": {"sps": 0}}, "the window of sps must be in [1, 2147483647], got 0"),
        ({"names": {"sps": "a:b"}}, "a drafter's name must match"),
        ({"target": "sps"}, "names of drafters and target must be unique"),
    ],
)
def test_options_that_do_not_fit(read, three, options, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        read("spec-bench", *three, **options)


def test_rounds_are_narrow_arrays(read, three):
    rounds = read("spec-bench", *three).requests[0].rounds["sps"]
    assert {rounds.start.dtype, rounds.accepted.dtype, rounds.drafted.dtype} == {np.dtype(np.int32)}


def test_every_name_given_is_the_name_of_something(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", answer(1, [3, 1]))
    for names in ({"sps": "a", "x.jsonl": "b"}, {str(path): "a", "x.jsonl": "b"}):
        with pytest.raises(ValueError, match="`names` must name a file or a method of the files, and one that no"):
            read("spec-bench", path, names=names)


@pytest.mark.parametrize("method", ["eagle", "eagle2", "medusa", "hydra", "rest", "samd"])
def test_methods_whose_steps_begin_with_the_token_before(read, tmp_path, method):
    """Steps of three tokens and of two: the prefill's and two drafted ones, the next and one drafted."""
    trace = read("spec-bench", write_lines(tmp_path / "x.jsonl", answer(1, [3, 2], method=method)))
    assert trace.meta.drafters[0].prefilled
    rounds = trace.requests[0].rounds[method]
    assert (rounds.start.tolist(), rounds.accepted.tolist()) == ([1, 4], [2, 1])
    assert trace.requests[0].num_tokens == {method: 5}
    last = read("spec-bench", write_lines(tmp_path / "y.jsonl", answer(1, [3, 1], method=method))).requests[0]
    assert (last.rounds[method].start.tolist(), last.num_tokens) == ([1, 4], {method: 5})


@pytest.mark.parametrize("method", ["sps", "pld", "lookahead", "recycling", "space", "unheard-of"])
def test_methods_that_verify_on_the_bare_prompt(read, tmp_path, method):
    path = write_lines(tmp_path / "x.jsonl", answer(1, [3, 2], method=method))
    info = read("spec-bench", path, names={"x.jsonl": "d"}).meta.drafters[0]
    assert not info.prefilled
    told = read("spec-bench", path, names={"x.jsonl": "d"}, prefilled={"d": True})
    assert told.meta.drafters[0].prefilled
    assert told.requests[0].rounds["d"].start.tolist() == [1, 4]


def test_steps_and_tokens_alone_give_rounds_with_that_mean(read, tmp_path):
    """As Medusa and EAGLE write them: `idxs`, the last step of each turn, and `new_tokens`."""
    line = answer(1, [3, 1, 5], [2, 2, 1, 4], method="medusa", accept_lengths=None, decoding_steps=None, idxs=[2, 3])
    path = write_lines(tmp_path / "x.jsonl", line, answer(2, [4, 2], method="medusa", accept_lengths=None))
    trace = read("auto", path, windows={"medusa": 5})
    assert (trace.meta.source, trace.meta.form) == ("spec-bench", "request means")
    for request, (steps, tokens) in zip(trace.requests, [(3, 9), (4, 9), (2, 6)], strict=True):
        rounds = request.rounds["medusa"]
        assert len(rounds.start) == steps
        assert request.num_tokens["medusa"] in (tokens, tokens + 1)  # a last step that gave one token has it
        assert rounds.accepted.sum() == tokens - steps
        assert rounds.placed.all()
        assert rounds.start[0] == 1


def test_turns_without_tokens_are_left_out_and_counted(read, tmp_path):
    rows = [
        answer(1, [3, 1], [], [2]),
        answer(2, [], wall_s=0.1, decoding_steps=None, idxs=[0], accept_lengths=[1]),
        answer(3, [2, 2]),
    ]
    trace = read("spec-bench", write_lines(tmp_path / "x.jsonl", *rows))
    assert [request.request_id for request in trace.requests] == ["1/1", "1/3", "3/1"]
    assert trace.requests[1].rounds["sps"].accepted.tolist() == [1]
    assert "2 answers without a token were left out" in trace.meta.notes


def test_bad_answers_are_skipped(read, tmp_path):
    rows = [
        answer(1, [3, 1]),
        answer(2, [3, 1], new_tokens=[99]),
        {"question_id": 3},
        answer(1, [2]),
        answer(4, [2, 2]),
    ]
    trace = read("spec-bench", write_lines(tmp_path / "x.jsonl", *rows), skip_bad_lines=True)
    assert [request.request_id for request in trace.requests] == ["1/1", "4/1"]
    assert trace.meta.notes[-1].startswith("3 bad lines were skipped (--skip-bad-lines); the first: ")


def test_rounds_beyond_the_window_are_bad_answers(read, tmp_path):
    """Found only once the whole file has said whose it is; nothing of the answer is left then."""
    rows = [answer(1, [3, 1]), answer(2, [2], [7, 1], []), answer(2, [4, 2]), {"question_id": 3}]
    trace = read("spec-bench", write_lines(tmp_path / "x.jsonl", *rows), skip_bad_lines=True, windows={"sps": 3})
    assert [request.request_id for request in trace.requests] == ["1/1", "2/1"]
    assert trace.requests[1].rounds["sps"].accepted.tolist() == [3, 1]
    assert not any("without a token" in note for note in trace.meta.notes)
    assert trace.meta.notes[-1].startswith("2 bad lines were skipped (--skip-bad-lines); the first: ")


def test_a_kept_note_names_options(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", answer(1, [3, 1]), answer(2, [7, 1]))
    note = read("spec-bench", path, skip_bad_lines=True, windows={"sps": 3}).meta.notes[-1]
    first = f"{path}: line 2: choices[0].sps: must hold rounds within --window sps=3, got 6"
    assert note == f"1 bad line was skipped (--skip-bad-lines); the first: {first}"


def test_answers_that_are_all_beyond_the_window(refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", answer(1, [3, 1]), answer(2, [7, 1]))
    told = refusal("spec-bench", path, skip_bad_lines=True, windows={"sps": 1})
    assert "x.jsonl: line 1: choices[0].sps: must hold rounds within `windows` sps=1 (all lines are bad), got 2" in told
