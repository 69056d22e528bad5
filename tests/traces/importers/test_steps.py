"""Logs that list steps: each is a round where it stood, with what it drafted and kept."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from paceline.traces.importers.responses import place_plain_steps

from .foreign_files import (
    aiperf,
    answer,
    frontier,
    guidellm,
    plain_response,
    positions,
    response,
    steps,
    summary,
    timed_answer,
    timing,
    write_lines,
)

CUT = "1 rounds reached beyond the end of their text; they are cut there, and censored"
# Format, lines, options; of each request its tokens, and starts, accepted and drafted tokens of its rounds; a note.
ROUNDS = [
    ("positions", [positions("a", draft=[3, 1, 2, 1])], {}, {"a": (4, [0, 1, 2, 3], [2, 0, 1, 0], [-1] * 4)}, ""),
    ("positions", [positions("a", draft=[3, 1, 1, 1])], {"windows": {"draft": 4}},
     {"a": (4, [0, 1, 2, 3], [2, 0, 0, 0], [4] * 4)}, ""),
    ("positions", [positions("a", draft=[2, 4, 2])], {}, {"a": (3, [0, 1, 2], [1, 2, 1], [-1, 2, -1])}, CUT),
    ("positions", [{"id": 5, "drafters": {"x": [2, 1]}, "output_token_ids": [1, 2]}], {"prefilled": {"x": True}},
     {"5": (2, [0, 1], [1, 0], [-1, -1])}, ""),
    ("frontier", [frontier({"7": [0, 3, 1, 2], "8": [1, 1]}, {"7": [2, 2, 0, 3], "8": [1, 1]})], {},
     {"7": (6, [0, 3, 4], [2, 0, 1], [2, 0, 3]), "8": (2, [0, 1], [0, 0], [1, 1])},
     "1 iterations committed nothing and were left out"),
    ("frontier", [frontier({"7": [3, 1]})], {}, {"7": (4, [0, 3], [2, 0], [-1, -1])}, ""),
    ("frontier", [frontier({"7": [3, 1]}, {"7": [2, 2]})], {"prefilled": {"drafter": True}},
     {"7": (5, [1, 4], [2, 0], [2, 2])}, ""),
    ("vllm-detailed", [response("a", [3, 0, 1], [3, 3, 2]), response("b", [0], [1])], {},
     {"a": (8, [1, 5, 6], [3, 0, 1], [3, 3, 2]), "b": (2, [1], [0], [1])}, ""),
    ("vllm-detailed", [response("a", [2, 0, 1], [2, 0, 2])], {}, {"a": (7, [1, 4, 5], [2, 0, 1], [2, 0, 2])}, ""),
    ("vllm-detailed", [response("a", [2, 3], [4, 4], tokens=6)], {}, {"a": (6, [1, 4], [2, 2], [4, 2])}, CUT),
    ("vllm-detailed", [response("a", [], []), response("b", [1], [1])], {},
     {"a": (1, [], [], []), "b": (3, [1], [1], [1])}, ""),
    ("vllm-detailed", [response("a", [], [], tokens=5)], {}, {"a": (5, [1, 2, 3, 4], [0] * 4, [0] * 4)},
     "4 steps drafted nothing and are not listed, in answers that list no step"),
    ("aiperf", [aiperf("a", [2, 0, 3], [3, 3, 3]), aiperf("b", [1, 0], [2, 2])], {},
     {"a": (9, [1, 4, 5], [2, 0, 3], [3, 3, 3]), "b": (4, [1, 3], [1, 0], [2, 2])}, ""),
    ("guidellm", [guidellm(response("a", [2, 0, 3], [3] * 3), incomplete=2)], {},
     {"a": (9, [1, 4, 5], [2, 0, 3], [3] * 3)}, "2 requests that failed or were cancelled were left out"),
    ("spec-bench", [answer(1, [3, 1, 4], [2])], {},
     {"1/1": (8, [0, 3, 4], [2, 0, 3], [-1] * 3), "1/2": (2, [0], [1], [-1])}, ""),
    ("spec-bench", [answer(1, [3, 1, 4])], {"windows": {"sps": 6}}, {"1/1": (8, [0, 3, 4], [2, 0, 3], [6] * 3)}, ""),
    ("spec-bench", [answer(1, [3, 4], new_tokens=[5])], {}, {"1/1": (5, [0, 3], [2, 2], [-1, 2])}, CUT),
    ("spec-bench", [answer(7, [2, 1], key="accept_lengths:", decoding_steps=None, idxs=[1], wall_time=None)], {},
     {"7/1": (3, [0, 2], [1, 0], [-1, -1])}, ""),
    ("spec-bench", [answer(1, [3, 1], [], [2]), answer(2, [], decoding_steps=None, idxs=[0], accept_lengths=[1])], {},
     {"1/1": (4, [0, 3], [2, 0], [-1, -1]), "1/3": (2, [0], [1], [-1])}, "2 answers without a token were left out"),
    # Methods whose steps begin with the token before, and those that verify on the bare prompt.
    *(("spec-bench", [answer(1, [3, 2], method=method), answer(2, [3, 1], method=method)], {},
       {"1/1": (5, [1, 4], [2, 1], [-1, -1]), "2/1": (5, [1, 4], [2, 0], [-1, -1])},
       "1 answers end with a step of which the file counts only the token before it; the one it sampled is counted")
      for method in ("eagle", "eagle2", "medusa", "hydra", "rest", "samd")),
    *(("spec-bench", [answer(1, [3, 2], method=method)], {"names": {"x.jsonl": "d"}},
       {"1/1": (5, [0, 3], [2, 1], [-1, -1])}, "")
      for method in ("sps", "pld", "lookahead", "recycling", "space", "unheard-of")),
    ("spec-bench", [answer(1, [3, 2], method="pld")], {"names": {"x.jsonl": "d"}, "prefilled": {"d": True}},
     {"1/1": (5, [1, 4], [2, 1], [-1, -1])}, ""),
]  # fmt: skip


@pytest.mark.parametrize("row", ROUNDS, ids=lambda row: f"{row[0]} {next(iter(row[3].values()))}")
def test_rounds_are_the_steps_of_the_log(read, tmp_path, row):
    name, lines, options, wanted, note = row
    trace = read(name, write_lines(tmp_path / "x.jsonl", *lines), **options)
    found = {}
    for request in trace.requests:
        (rounds,) = request.rounds.values()
        assert rounds.placed is None
        assert {rounds.start.dtype, rounds.accepted.dtype, rounds.drafted.dtype} == {np.dtype(np.int32)}
        (tokens,) = request.num_tokens.values()
        found[request.request_id] = (
            tokens,
            *(column.tolist() for column in (rounds.start, rounds.accepted, rounds.drafted)),
        )
    assert found == wanted
    assert [one for one in trace.meta.notes if one[0].isdigit()] == ([note] if note else [])


@pytest.mark.parametrize(
    ("name", "line", "drafter"),
    [
        ("positions", positions("a", draft=[3, 1, 2, 1]), ("draft", True, 2, False)),
        ("frontier", frontier({"7": [3, 1]}), ("drafter", True, 2, False)),
        ("vllm-detailed", response("a", [3, 0], [3, 3]), ("drafter", True, 3, True)),
        ("spec-bench", answer(1, [3, 1]), ("sps", False, 2, False)),
        ("spec-bench", answer(1, [3, 1], method="eagle"), ("eagle", True, 2, True)),
        ("spec-bench", answer(1, [3, 1], method="of our own"), ("toy-7b-of-our-own-float16", True, 2, False)),
        ("spec-bench", {**answer(1, [3, 1]), "model_id": None}, ("medusa", True, 2, True)),
    ],
)
def test_what_a_drafter_is(read, tmp_path, name, line, drafter):
    file = "toy_medusa.jsonl" if line.get("model_id", "") is None else "x.jsonl"
    (found,) = read(name, write_lines(tmp_path / file, line)).meta.drafters
    assert (found.name, found.by_start, found.window, found.prefilled) == drafter


# -- methods over the same questions


@pytest.fixture
def three(tmp_path):
    """Two questions under the target alone, a draft model and EAGLE; the second one has two turns."""
    plain = [answer(1, [1] * 8, method="vanilla"), answer(2, [1] * 3, [1] * 2, method="vanilla", category="qa")]
    sps = [answer(1, [3, 1, 4], wall_s=0.4), answer(2, [1, 2], [2], category="qa")]
    eagle = [answer(2, [3], [1, 1], method="eagle", category="qa"), answer(1, [5, 4], method="eagle")]
    return [write_lines(tmp_path / f"{name}.jsonl", *lines) for name, lines in (("a", plain), ("b", sps), ("c", eagle))]


def test_methods_over_the_same_questions_merge(read, three, tmp_path):
    trace = read("spec-bench", *three)
    assert [(request.request_id, request.tag) for request in trace.requests] == [
        ("1/1", "math"), ("2/1", "qa"), ("2/2", "qa"),
    ]  # fmt: skip
    first = trace.requests[0]
    assert first.num_tokens == {"": 8, "sps": 8, "eagle": 9}
    assert first.wall_s == {"": 0.5, "sps": 0.4, "eagle": 0.5}
    assert set(first.rounds) == {"sps", "eagle"}
    assert first.rounds["sps"].censored(3).tolist() == [False, False, True]
    assert trace.requests[2].rounds["eagle"].start.tolist() == [1, 2]
    assert trace.meta.notes[3:] == ("2 requests have answers whose length depends on the method",)
    one = write_lines(tmp_path / "medusa.jsonl", answer(1, [3, 3, 2], method="medusa"))
    assert read("spec-bench", three[0], one).meta.notes[2:] == ("2 requests were not answered by every method",)


def test_what_the_user_says_of_methods(read, three):
    sps, eagle = read("spec-bench", *three, token_drafters=frozenset({"eagle"}), windows={"sps": 6}).meta.drafters
    assert (sps.window, eagle.by_start) == (6, False)
    named = read("spec-bench", *three, names={"b.jsonl": "small", "eagle": "tree"})
    assert [(drafter.name, drafter.by_start) for drafter in named.meta.drafters] == [("small", False), ("tree", True)]


def test_a_file_whose_steps_emit_one_token_is_the_target_alone(read, three, tmp_path):
    trace = read("spec-bench", three[0])
    assert (trace.meta.drafters, trace.requests[0].num_tokens) == ((), {"": 8})
    bare = answer(1, [1] * 4, accept_lengths=None, decoding_steps=None, idxs=[3])
    assert read("spec-bench", write_lines(tmp_path / "bare.jsonl", bare)).requests[0].num_tokens == {"": 4}


def test_fields_that_may_be_missing(read, tmp_path):
    line = answer(7, [2, 1])
    del line["category"], line["choices"][0]["wall_time"]
    request = read("spec-bench", write_lines(tmp_path / "x.jsonl.gz", line)).requests[0]
    assert (request.tag, request.wall_s) == ("", {})
    assert math.isnan(request.seconds("sps"))
    line = {"id": 5, "prompt_token_ids": [7, 8], "output_token_ids": [1, 2], "drafters": {"draft": [2, 1]}}
    request = read("positions", write_lines(tmp_path / "x.jsonl", line)).requests[0]
    assert (request.tag, request.prompt, request.output, request.prompt_tokens) == ("", (7, 8), (1, 2), 2)


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


def test_steps_and_tokens_alone_give_rounds_with_that_mean(read, tmp_path):
    """As Medusa and EAGLE write them: `idxs`, the last step of each turn, and `new_tokens`."""
    line = answer(1, [3, 1, 5], [2, 2, 1, 4], method="medusa", accept_lengths=None, decoding_steps=None, idxs=[2, 3])
    path = write_lines(tmp_path / "x.jsonl", line, answer(2, [4, 2], method="medusa", accept_lengths=None))
    trace = read("auto", path, windows={"medusa": 5})
    assert (trace.meta.source, trace.meta.form) == ("spec-bench", "request means")
    for request, (count, tokens) in zip(trace.requests, [(3, 9), (4, 9), (2, 6)], strict=True):
        rounds = request.rounds["medusa"]
        assert (len(rounds.start), rounds.accepted.sum(), rounds.start[0]) == (count, tokens - count, 1)
        assert request.num_tokens["medusa"] in (tokens, tokens + 1)  # a last step that gave one token has it
        assert rounds.placed.all()


# -- EAGLE's timings


TURNS, OTHER = [[6, 0, 2], [3]], [[1, 1]]


def test_steps_and_their_seconds(read, tmp_path):
    """Two methods over the same two questions, the first of two turns: timings and answers, in any order."""
    two = [
        write_lines(tmp_path / "toy_ea_hsd.jsonl", timed_answer(1, *TURNS), timed_answer(2, *OTHER)),
        write_lines(tmp_path / "toy_ea_info.jsonl", timing([5, 1], [3]), timing([0, 2])),
        write_lines(tmp_path / "toy_ea_hsd_info.jsonl", timing(*TURNS, second=0.02), timing(*OTHER)),
        write_lines(tmp_path / "toy_ea.jsonl", timed_answer(1, [5, 1], [3]), timed_answer(2, [0, 2])),
    ]
    trace = read("eagle-timed", *two)
    assert [(d.name, d.window, d.by_start) for d in trace.meta.drafters] == [("eagle", 6, True), ("hsd", 6, True)]
    assert [request.request_id for request in trace.requests] == ["1/1", "1/2", "2/1"]
    first = trace.requests[0]
    assert first.num_tokens == {"eagle": 8, "hsd": 11}
    assert first.wall_s == {"eagle": pytest.approx(0.2), "hsd": pytest.approx(0.6)}
    assert first.prefill_s["hsd"] == pytest.approx(0.02 * 1.011)
    rounds = first.rounds["hsd"]
    assert rounds.start.tolist() == [1, 8, 9]  # after the prefill's token
    assert (rounds.accepted.tolist(), rounds.drafted.tolist()) == ([6, 0, 2], [6, 6, 6])
    assert rounds.draft_s == pytest.approx([0.01] * 3)
    assert rounds.verify_s == pytest.approx([0.022, 0.024, 0.026])
    named = read("eagle-timed", *two, names={"toy_ea_info.jsonl": "one", "toy_ea_hsd.jsonl": "two"})
    assert [drafter.name for drafter in named.meta.drafters] == ["one", "two"]


def test_the_root_of_the_tree_is_no_draft(read, tmp_path):
    info = write_lines(tmp_path / "x_info.jsonl", timing([2, 0], depth=3))
    trace = read(
        "eagle-timed", info, write_lines(tmp_path / "x.jsonl", timed_answer(1, [2, 0])), names={"x.jsonl": "t"}
    )
    assert trace.meta.drafters[0].window == 2
    assert trace.requests[0].rounds["t"].drafted.tolist() == [2, 2]


# -- vLLM's responses


@pytest.mark.parametrize(
    "wrap",
    [
        lambda metrics: metrics,
        lambda metrics: {"speculative_decoding": metrics},
        lambda metrics: {"spec_decode_metrics": metrics},
        lambda metrics: {"metrics": {"speculative_decoding": metrics}},
        lambda metrics: {"choices": [{"index": 0, "speculative_decoding_stats": metrics}]},
    ],
)
def test_wherever_the_metrics_stand(read, tmp_path, wrap):
    trace = read("auto", write_lines(tmp_path / "log.jsonl", wrap(steps([2], [2])), wrap(steps([0], [2]))))
    assert trace.meta.source == "vllm-detailed"
    assert [(one.request_id, one.num_tokens["drafter"]) for one in trace.requests] == [("log/1", 4), ("log/2", 2)]


def test_steps_that_are_not_listed_are_placed_by_a_seed_and_said(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [2, 0, 1], [2, 2, 2], tokens=40))
    trace = read("vllm-detailed", path)
    assert trace.requests[0].num_tokens == {"drafter": 40}
    rounds = trace.requests[0].rounds["drafter"]
    assert rounds.placed.sum() == 33
    assert (rounds.drafted[rounds.placed] == 0).all()
    assert rounds.accepted[~rounds.placed].tolist() == [2, 0, 1]
    assert rounds.start.tolist() == (np.cumsum(rounds.accepted + 1) - rounds.accepted).tolist()
    assert trace.meta.notes[-1] == "33 steps drafted nothing and are not listed; they were placed by a draw"
    starts = [read("vllm-detailed", path, seed=seed).requests[0].rounds["drafter"].start.tolist() for seed in (0, 1, 2)]
    assert starts[0] == rounds.start.tolist()
    assert len({str(start) for start in starts}) == 3


def test_every_order_of_listed_and_plain_steps_is_as_likely():
    generator = np.random.default_rng(0)
    orders = Counter(tuple(place_plain_steps(2, 2, generator).tolist()) for _ in range(6000))
    assert len(orders) == 6
    assert max(orders.values()) < 1.15 * min(orders.values())


def test_rows_without_speculation_are_requests_of_the_target_alone(read, tmp_path):
    rows = [plain_response("p", tokens=7), response("a", [2], [3]), {"id": "q", "speculative_decoding": None,
            "usage": {"completion_tokens": 4}}, plain_response("r", tokens=0)]  # fmt: skip
    trace = read("auto", write_lines(tmp_path / "x.jsonl", *rows))
    assert (trace.meta.source, trace.meta.form) == ("vllm-detailed", "rounds")
    assert [dict(request.num_tokens) for request in trace.requests[::2]] == [{"": 7}, {"": 4}]
    assert not trace.requests[0].rounds
    assert "1 answers without a token were left out" in trace.meta.notes
    trace = read("auto", write_lines(tmp_path / "y.jsonl", plain_response("p"), plain_response("q")))
    assert (trace.meta.drafters, len(trace.requests)) == ((), 2)


@pytest.mark.parametrize("shape", ["pretty", "array", "stream"])
def test_responses_however_they_were_saved(read, tmp_path, shape):
    rows = [response("a", [3, 0, 1], [3, 3, 2]), plain_response("p"), response("b", [0], [1])]
    chunks = [{"id": row["id"], "choices": [{"delta": {"content": "."}}]} for row in rows]
    text = {
        "pretty": "\n".join(json.dumps(row, indent=2) for row in rows),
        "array": json.dumps(rows),
        "stream": "".join(
            f"data: {json.dumps(chunk)}\n\ndata: {json.dumps({**row, 'choices': []})}\n\ndata: [DONE]\n\n"
            for chunk, row in zip(chunks, rows, strict=True)
        ),
    }
    (tmp_path / "x").write_text(text[shape])
    wanted = read("vllm-detailed", write_lines(tmp_path / "lines.jsonl", *rows))
    assert [repr(one) for one in read("auto", tmp_path / "x").requests] == [repr(one) for one in wanted.requests]


def test_clients_of_benchmarks_keep_histograms_and_leave_out_what_says_nothing(read, tmp_path):
    sparse = read("auto", write_lines(tmp_path / "p.jsonl", aiperf("a", [0, 3, 3, 0, 3], [3] * 5, listed=False)))
    assert (sparse.meta.form, sparse.requests[0].prompt_tokens) == ("histograms", 12)
    rounds = sparse.requests[0].rounds["drafter"]
    assert sorted(rounds.accepted.tolist()) == [0, 0, 3, 3, 3]
    assert rounds.placed.all()
    bare = aiperf("c", [1], [2])
    del bare["spec_decode_acceptance"]
    records = [
        aiperf("w", [1], [2], phase="warmup"),
        aiperf("a", [1], [2]),
        bare,
        aiperf("e", [1], [2], error={"x": 5}),
    ]
    trace = read("auto", write_lines(tmp_path / "p.jsonl", *records))
    assert [request.request_id for request in trace.requests] == ["a"]
    notes = " ".join(trace.meta.notes)
    for words in ("1 requests of the warm-up", "1 requests that failed", "1 requests without acceptance"):
        assert words in notes
    report = guidellm(response("a", [2], [3]), summary("b", [3, 2, 1]), plain_response("p", tokens=6))
    trace = read("auto", write_lines(tmp_path / "g.json", report))
    assert (trace.meta.source, trace.meta.form) == ("guidellm", "histograms")
    assert sorted(trace.requests[1].rounds["drafter"].accepted.tolist()) == [0, 0, 0, 1, 1, 2]
    assert (dict(trace.requests[2].num_tokens), trace.requests[2].rounds) == ({"": 6}, {})


# -- lines that are skipped


SKIPPED = "bad lines were skipped (--skip-bad-lines); the first: "


@pytest.mark.parametrize(
    ("name", "rows", "options", "kept", "bad"),
    [
        ("spec-bench", [answer(1, [3, 1]), answer(2, [3, 1], new_tokens=[99]), {"question_id": 3}, answer(1, [2]),
                        answer(4, [2, 2])], {}, ["1/1", "4/1"], 3),
        # Found only once the whole file has said whose it is; nothing of the answer is left then.
        ("spec-bench", [answer(1, [3, 1]), answer(2, [2], [7, 1], []), answer(2, [4, 2]), {"question_id": 3}],
         {"windows": {"sps": 3}}, ["1/1", "2/1"], 2),
        ("vllm-detailed", [response("a", [1], [2]), response("b", [3], [2]), response("a", [1], [1]),
                           response("c", [1], [1])], {}, ["a", "c"], 2),
    ],
)  # fmt: skip
def test_bad_lines_are_skipped(read, tmp_path, name, rows, options, kept, bad):
    trace = read(name, write_lines(tmp_path / "x.jsonl", *rows), skip_bad_lines=True, **options)
    assert [request.request_id for request in trace.requests] == kept
    assert trace.meta.notes[-1].startswith(f"{bad} {SKIPPED}")
    assert not any("without a token" in note for note in trace.meta.notes)


def test_a_kept_note_names_options_and_a_file_of_bad_lines_is_refused(read, refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", answer(1, [3, 1]), answer(2, [7, 1]))
    note = read("spec-bench", path, skip_bad_lines=True, windows={"sps": 3}).meta.notes[-1]
    first = f"{path}: line 2: choices[0].sps: must hold rounds within --window sps=3, got 6"
    assert note == f"1 bad line was skipped (--skip-bad-lines); the first: {first}"
    told = refusal("spec-bench", path, skip_bad_lines=True, windows={"sps": 1})
    assert "x.jsonl: line 1: choices[0].sps: must hold rounds within `windows` sps=1 (all lines are bad), got 2" in told
