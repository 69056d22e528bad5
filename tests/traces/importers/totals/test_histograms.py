"""Logs that count rounds by request: what is imported meets the counts, and what cannot be met is refused."""

import numpy as np
import pytest

from ..foreign_files import plain_response, response, sglang, summary, trtllm, write_lines

WAYS = [
    ("vllm-summary", lambda name, histogram, **more: summary(name, histogram, **more)),
    ("sglang-meta", lambda name, histogram, tokens=None, **_: sglang(
        name, sum(histogram), emitted(histogram) + 1 if tokens is None else tokens, histogram=histogram,
        window=len(histogram) - 1)),
    ("trtllm", lambda name, histogram, tokens=None, **_: trtllm(name, histogram=histogram, tokens=tokens)),
]  # fmt: skip


def emitted(histogram):
    return sum((kept + 1) * times for kept, times in enumerate(histogram))


def histogram_of(rounds, size):
    """How many rounds kept so many tokens; plain steps left out."""
    return np.bincount(rounds.accepted[rounds.drafted != 0], minlength=size).tolist()


@pytest.fixture(params=WAYS, ids=lambda way: way[0])
def way(request):
    return request.param


def test_rounds_have_the_histogram(read, tmp_path, way):
    name, build = way
    path = write_lines(tmp_path / "x.jsonl", build("a", [5, 3, 0, 7]), build("b", [2, 0, 0, 1]))
    trace = read("auto", path)
    assert (trace.meta.source, trace.meta.form) == (name, "histograms")
    drafter = trace.meta.drafters[0]
    assert (drafter.name, drafter.window, drafter.prefilled) == ("drafter", 3, True)
    for request, histogram in zip(trace.requests, ([5, 3, 0, 7], [2, 0, 0, 1]), strict=True):
        rounds = request.rounds["drafter"]
        assert request.num_tokens == {"drafter": emitted(histogram) + 1}
        assert histogram_of(rounds, 4) == histogram
        assert rounds.placed.all()
        assert rounds.start[0] == 1
        assert (rounds.start[1:] == rounds.start[:-1] + rounds.accepted[:-1] + 1).all()


def test_steps_that_drafted_nothing_are_placed_among_the_others(read, tmp_path, way):
    name, build = way
    trace = read(name, write_lines(tmp_path / "x.jsonl", build("a", [2, 0, 3], tokens=emitted([2, 0, 3]) + 1 + 6)))
    rounds = trace.requests[0].rounds["drafter"]
    assert len(rounds.start) == 5 + 6
    assert (rounds.drafted == 0).sum() == 6
    assert histogram_of(rounds, 3) == [2, 0, 3]


def test_an_answer_that_ended_within_a_step(read, refusal, tmp_path, way):
    name, build = way
    whole = emitted([2, 1, 3]) + 1
    rounds = read(name, write_lines(tmp_path / "x.jsonl", build("a", [2, 1, 3], tokens=whole - 2))).requests[0].rounds
    assert len(rounds["drafter"].start) == 6
    assert int(rounds["drafter"].start[-1]) + 1 == whole - 2
    told = refusal(name, write_lines(tmp_path / "x.jsonl", build("a", [2, 1, 3], tokens=whole - 3)))
    assert f"must be at least what its steps emit, {whole} with the prefill's, but for one step's draft" in told


def test_the_seed_draws_the_order(read, tmp_path, way):
    name, build = way
    path = write_lines(tmp_path / "x.jsonl", build("a", [20, 10, 20]))
    orders = {seed: tuple(read(name, path, seed=seed).requests[0].rounds["drafter"].accepted) for seed in (0, 0, 1, 2)}
    assert len(set(orders.values())) == 3
    assert orders[0] == tuple(read(name, path).requests[0].rounds["drafter"].accepted)


def test_drafts_shorter_than_the_window(read, refusal, tmp_path):
    rounds = read("vllm-summary", write_lines(tmp_path / "x.jsonl", summary("a", [4, 2, 0, 2], drafted=17)))
    rounds = rounds.requests[0].rounds["drafter"]
    assert rounds.drafted.sum() == 17
    assert (rounds.drafted >= rounds.accepted).all()
    told = refusal("vllm-summary", write_lines(tmp_path / "x.jsonl", summary("a", [4, 2, 0, 2], drafted=25)))
    assert "drafted: must lie between the 8 accepted and 8 steps of 3 tokens (`windows`), got 25" in told


def test_a_tree_counts_as_its_deepest_path(read, refusal, tmp_path):
    """63 tokens proposed in a step are no window of 63."""
    path = write_lines(tmp_path / "x.jsonl", sglang("a", 10, 22, histogram=[4, 2, 3, 1], window=63))
    told = refusal("sglang-meta", path)
    assert (
        "meta_info.window: must be stated, `windows` drafter=K, since no histogram of the file goes beyond 3: a" in told
    )
    assert told.endswith("got '63 tokens proposed in a step'")
    trace = read("sglang-meta", path, windows={"drafter": 5})
    rounds = trace.requests[0].rounds["drafter"]
    assert trace.meta.drafters[0].window == 5
    assert histogram_of(rounds, 4) == [4, 2, 3, 1]
    assert (rounds.drafted == 5).all()
    assert trace.meta.notes[-1].startswith("1 requests were proposed more tokens than chains of --window have: trees")


def test_a_tree_without_a_histogram_needs_its_depth(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", sglang("a", 10, 26, window=63))
    trace = read("sglang-meta", path, windows={"drafter": 5})
    assert trace.requests[0].rounds["drafter"].drafted.max() == 5
    assert trace.meta.drafters[0].window == 5


def test_a_chain_that_no_step_kept_whole_needs_its_window(read, refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", sglang("a", 3, 7, histogram=[1, 1, 1], window=3))
    assert "a chain that no step kept whole, got '3 tokens proposed in a step'" in refusal("sglang-meta", path)
    trace = read("sglang-meta", path, windows={"drafter": 3})
    assert trace.requests[0].rounds["drafter"].drafted.tolist() == [3, 3, 3]
    assert not any("trees" in note for note in trace.meta.notes[2:])


def test_rows_of_the_target_alone(read, tmp_path):
    rows = [plain_response("p", tokens=7), summary("a", [1, 2]), plain_response("q", tokens=3)]
    trace = read("auto", write_lines(tmp_path / "x.jsonl", *rows))
    assert trace.meta.source == "vllm-summary"
    assert [dict(request.num_tokens) for request in trace.requests] == [{"": 7}, {"drafter": 6}, {"": 3}]
    trace = read("auto", write_lines(tmp_path / "x.jsonl", sglang("a", 0, 5), sglang("b", 2, 5, histogram=[1, 0, 1],
                                                                                  window=2)))  # fmt: skip
    assert [dict(request.num_tokens) for request in trace.requests] == [{"": 5}, {"drafter": 5}]


def test_answers_without_a_token_are_left_out_and_counted(read, tmp_path):
    rows = [summary("a", [], tokens=0), summary("b", [1, 1]), plain_response("c", tokens=0)]
    rows[0]["metrics"]["speculative_decoding"]["num_spec_tokens"] = 3
    trace = read("vllm-summary", write_lines(tmp_path / "x.jsonl", *rows))
    assert [request.request_id for request in trace.requests] == ["b"]
    assert "2 answers without a token were left out" in trace.meta.notes


def test_the_window_of_sglang_is_that_of_the_whole_file(read, refusal, tmp_path):
    """One response that shows a chain, or what was drafted, shows it for all."""
    refused = sglang("a", 3, 7, histogram=[1, 1, 1], window=3)  # by itself: a tree, or a chain that no step kept whole
    whole, silent = sglang("b", 2, 7, histogram=[1, 0, 0, 1], window=3), sglang("c", 4, 9, window=None)
    less = sglang("d", 4, 8, histogram=[2, 1, 1], window=2)  # the server drafted less there
    part = sglang("e", 4, 8, histogram=[2, 1, 1], spec_draft_token_num=10, window=None)
    broken = {"meta_info": {"id": "f", "spec_verify_ct": "?"}}
    path = write_lines(tmp_path / "x.jsonl", refused, whole, silent, less, part)
    trace = read("sglang-meta", path)
    assert trace.meta.drafters[0].window == 3
    drafted = {request.request_id: int(request.rounds["drafter"].drafted.sum()) for request in trace.requests}
    assert drafted == {"a": 9, "b": 6, "c": 12, "d": 8, "e": 10}
    trace = read("sglang-meta", write_lines(tmp_path / "y.jsonl", broken, whole, refused), skip_bad_lines=True)
    assert len(trace.requests) == 2
    for other in (silent, less):
        assert "window: must be stated" in refusal("sglang-meta", write_lines(tmp_path / "z.jsonl", refused, other))


def test_a_mean_alone_gives_as_many_steps(read, refusal, tmp_path):
    """SGLang without a histogram, TensorRT-LLM without statistics: steps and tokens are known."""
    path = write_lines(tmp_path / "x.jsonl", sglang("a", 12, 31, window=None), sglang("b", 9, 25, window=None))
    told = refusal("sglang-meta", path)
    assert "line 1: meta_info.window: must be stated, the log does not say how many tokens a round drafts" in told
    trace = read("sglang-meta", path, windows={"drafter": 3})
    assert trace.meta.form == "request means"
    for request, steps in zip(trace.requests, (12, 9), strict=True):
        rounds = request.rounds["drafter"]
        assert len(rounds.start) == steps
        assert rounds.accepted.sum() + steps + 1 == request.num_tokens["drafter"]
    path = write_lines(tmp_path / "x.jsonl", trtllm("a", mean=2.5, tokens=50))
    assert "choices[0].window: must be stated" in refusal("trtllm", path)
    rounds = read("trtllm", path, windows={"drafter": 4}).requests[0].rounds["drafter"]
    assert len(rounds.start) == 50 / 2.5 - 1  # the prefill's iteration counts in TensorRT-LLM's mean
    assert rounds.accepted.sum() == 50 - 1 - len(rounds.start)


@pytest.mark.parametrize(
    ("format_name", "line", "told"),
    [
        ("vllm-summary", {"id": "a", "metrics": {}}, "speculative_decoding: must be there, under metrics.speculative"),
        ("vllm-summary", {"id": "a", "metrics": {"speculative_decoding": None}}, "usage.completion_tokens: must be"),
        ("vllm-summary", summary("a", [1, -1]), "acceptance_histogram[1]: must be a whole number in [0, 2147483647]"),
        ("vllm-summary", summary("a", [2**30, 0]), "steps: must be at most 1000000, with the tokens"),
        (
            "sglang-meta",
            sglang("a", 3, 13, histogram=[3, 1]),
            "must count each of the 3 steps of spec_verify_ct once, by the tokens that it kept, got '4 steps'",
        ),
        ("sglang-meta", sglang("a", 9, 5), "meta_info.spec_verify_ct: must be less than the 5 tokens of the answer"),
        ("sglang-meta", {"id": "a"}, "meta_info: must be there, it holds spec_verify_ct"),
        (
            "trtllm",
            {"id": "a", "choices": []},
            "choices: must have speculative_decoding or avg_decoded_tokens_per_iter",
        ),
        ("trtllm", trtllm("a", mean=0.5, tokens=9), "must lie between 1 and the 9 tokens of the answer, got 0.5"),
        (
            "vllm-detailed",
            summary("a", [1, 1]),
            "a histogram does not say in which order steps came (take vllm-summary)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, format_name, line, told):
    found = refusal(format_name, write_lines(tmp_path / "x.jsonl", line))
    assert f"{tmp_path / 'x.jsonl'}: line 1: " in found
    assert told in found


def test_a_file_of_both_kinds_is_refused_where_it_changes(refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [1, 0], [2, 2]), summary("b", [1, 1]))
    assert "line 2: metrics.speculative_decoding.per_step_accepted: must be there" in refusal("auto", path)


def adaptive(kept, proposed):
    """A response of SGLang whose depth was adapted: what its other counts say is as if it had been the greatest."""
    steps = sum(kept)
    return sglang("a", steps, emitted(kept) + 1, histogram=kept, window=None, spec_num_proposed_drafts=7 * steps,
                  spec_proposed_drafts_histogram=proposed)  # fmt: skip


def test_steps_of_sglang_are_as_long_as_they_were_proposed(read, tmp_path):
    """A step of one drafted token that kept it refused nothing, whatever the greatest depth is."""
    kept, proposed = [2, 6, 1, 2, 0, 1, 0], [0, 6, 0, 4, 0, 2, 0]
    trace = read("auto", write_lines(tmp_path / "x.jsonl", adaptive(kept, proposed)))
    rounds = trace.requests[0].rounds["drafter"]
    assert trace.meta.drafters[0].window == 5
    assert np.bincount(rounds.drafted, minlength=7).tolist() == proposed
    assert histogram_of(rounds, 7) == kept
    assert (rounds.accepted <= rounds.drafted).all()


@pytest.mark.parametrize(
    ("kept", "proposed", "told"),
    [
        ([2, 3], [0, 4], "spec_proposed_drafts_histogram: must add up to the 5 steps of"),
        ([3, 0, 2], [0, 4, 1], "spec_proposed_drafts_histogram: must hold the 2 steps of"),
        ([2, 3], [0, -5], "spec_proposed_drafts_histogram[1]: must be a whole number in [0, 2147483647], got -5"),
    ],
)
def test_a_histogram_of_proposals_that_does_not_fit_is_refused(refusal, tmp_path, kept, proposed, told):
    assert told in refusal("sglang-meta", write_lines(tmp_path / "x.jsonl", adaptive(kept, proposed)))


def test_a_tree_of_sglang_is_one_with_a_histogram_of_proposals_too(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", adaptive([2, 3], [0, 0, 0, 0, 0, 0, 0, 5]))
    trace = read("sglang-meta", path, windows={"drafter": 3})
    assert trace.meta.drafters[0].window == 3
    assert any("trees, of which the deepest path counts" in note for note in trace.meta.notes)
