import json
from collections import Counter

import numpy as np
import pytest
from paceline.traces.importers.responses import place_plain_steps

from ..foreign_files import plain_response, response, steps, write_lines


def test_steps_of_responses(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [3, 0, 1], [3, 3, 2]), response("b", [0], [1]))
    trace = read("vllm-detailed", path)
    assert trace.meta.drafters[0].model_dump(exclude_none=True) == {
        "name": "drafter",
        "by_start": True,
        "window": 3,
        "prefilled": True,
    }
    first = trace.requests[0]
    assert (first.request_id, first.prompt_tokens, first.num_tokens) == ("a", 11, {"drafter": 8})
    rounds = first.rounds["drafter"]
    assert rounds.start.tolist() == [1, 5, 6]  # after the prefill's token
    assert rounds.accepted.tolist() == [3, 0, 1]
    assert rounds.drafted.tolist() == [3, 3, 2]
    assert rounds.censored(3).tolist() == [True, False, False]


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
    assert [request.request_id for request in trace.requests] == ["log/1", "log/2"]
    assert [request.num_tokens["drafter"] for request in trace.requests] == [4, 2]


def test_a_step_without_a_draft_is_plain(read, tmp_path):
    trace = read("vllm-detailed", write_lines(tmp_path / "x.jsonl", response("a", [2, 0, 1], [2, 0, 2])))
    rounds = trace.requests[0].rounds["drafter"]
    assert rounds.start.tolist() == [1, 4, 5]
    assert rounds.drafted.tolist() == [2, 0, 2]
    assert rounds.placed is None
    assert trace.requests[0].num_tokens == {"drafter": 7}


def test_steps_that_are_not_listed_are_placed_and_said(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [2, 0, 1], [2, 2, 2], tokens=12))
    trace = read("vllm-detailed", path)
    assert trace.requests[0].num_tokens == {"drafter": 12}
    rounds = trace.requests[0].rounds["drafter"]
    assert rounds.placed.sum() == 5
    assert (rounds.drafted[rounds.placed] == 0).all()
    assert rounds.accepted[~rounds.placed].tolist() == [2, 0, 1]
    assert rounds.start.tolist() == (np.cumsum(rounds.accepted + 1) - rounds.accepted).tolist()
    assert trace.meta.notes[-1] == "5 steps drafted nothing and are not listed; they were placed by a draw"


def test_the_seed_places_what_is_not_listed(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [2, 0, 1], [2, 2, 2], tokens=40))
    starts = {
        seed: read("vllm-detailed", path, seed=seed).requests[0].rounds["drafter"].start.tolist()
        for seed in (None, 0, 1, 2)
    }
    assert starts[None] == starts[0]
    assert len({str(start) for start in starts.values()}) == 3


@pytest.mark.parametrize("found", [response("a", [2, 0, 1], [2, 2, 2]), response("a", [], [], tokens=5)])
def test_a_seed_is_refused_where_every_step_has_its_place(read, tmp_path, found):
    with pytest.raises(ValueError, match="`seed` must be left out: nothing of this log is drawn"):
        read("vllm-detailed", write_lines(tmp_path / "x.jsonl", found), seed=1)


def test_every_order_of_listed_and_plain_steps_is_as_likely():
    generator = np.random.default_rng(0)
    orders = Counter(tuple(place_plain_steps(2, 2, generator).tolist()) for _ in range(6000))
    assert len(orders) == 6
    assert max(orders.values()) < 1.15 * min(orders.values())


def test_an_answer_of_plain_steps_alone_leaves_nothing_to_draw(read, tmp_path):
    trace = read("vllm-detailed", write_lines(tmp_path / "x.jsonl", response("a", [], [], tokens=5)))
    assert trace.meta.notes[-1] == "4 steps drafted nothing and are not listed, in answers that list no step"
    rounds = trace.requests[0].rounds
    assert rounds["drafter"].start.tolist() == [1, 2, 3, 4]
    assert rounds["drafter"].placed is None


def test_an_answer_that_ended_within_its_last_step(read, refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [2, 3], [4, 4], tokens=6))
    rounds = read("vllm-detailed", path).requests[0].rounds["drafter"]
    assert (rounds.accepted.tolist(), rounds.drafted.tolist()) == ([2, 2], [4, 2])
    path = write_lines(tmp_path / "x.jsonl", response("a", [2, 3], [4, 4], tokens=4))
    assert "usage.completion_tokens: must be at least what its steps emit" in refusal("vllm-detailed", path)


def test_an_answer_of_the_prefill_alone(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [], []), response("b", [1], [1]))
    first = read("vllm-detailed", path).requests[0]
    assert first.num_tokens == {"drafter": 1}
    assert len(first.rounds["drafter"].start) == 0


def summary():
    found = response("a", [1], [2])
    del found["metrics"]["speculative_decoding"]["per_step_accepted"]
    return found


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (summary(), "per_step_accepted: must be there (`detailed`): a histogram does not say in which order"),
        (
            {"id": "a", "metrics": {}},
            "speculative_decoding: must be there, under metrics.speculative_decoding or alone",
        ),
        (response("a", [3], [2]), "accepted, step 0: must be at most the 2 drafted, got 3"),
        (response("a", [3], [2, 1]), "drafted: must hold one entry for each of the 1 steps, got 2"),
        (response("a", [1], [2], tokens=2**25), "usage.completion_tokens: must be at most 16777216 more than what its"),
        (response("a", [-1], [2]), "metrics.speculative_decoding.per_step_accepted[0]: must be a whole number"),
        (response("first", [1], [2]), "id: must be unique, got 'first'"),
        (response("", [1], [2]), "id: must not be empty, got ''"),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, line, told):
    path = write_lines(tmp_path / "x.jsonl", response("first", [1], [2]), line)
    found = refusal("vllm-detailed", path)
    assert "x.jsonl: line 2: " in found
    assert told in found


def test_every_answer_starts_after_a_prefill(read, refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", response("a", [1], [2]))
    assert read("vllm-detailed", path, prefilled={"drafter": True}).meta.drafters[0].prefilled
    with pytest.raises(ValueError, match="`prefilled` drafter must be prefill, as in every log of this format"):
        read("vllm-detailed", path, prefilled={"drafter": False})


def test_rows_without_speculation_are_requests_of_the_target_alone(read, tmp_path):
    rows = [plain_response("p", tokens=7), response("a", [2], [3]), {"id": "q", "speculative_decoding": None,
            "usage": {"completion_tokens": 4}}, plain_response("r", tokens=0)]  # fmt: skip
    trace = read("auto", write_lines(tmp_path / "x.jsonl", *rows))
    assert (trace.meta.source, trace.meta.form) == ("vllm-detailed", "rounds")
    assert [dict(request.num_tokens) for request in trace.requests[::2]] == [{"": 7}, {"": 4}]
    assert not trace.requests[0].rounds
    assert "1 answers without a token were left out" in trace.meta.notes
    trace = read("auto", write_lines(tmp_path / "y.jsonl", plain_response("p"), plain_response("q")))
    assert trace.meta.drafters == ()
    assert len(trace.requests) == 2


@pytest.mark.parametrize("shape", ["pretty", "array", "stream"])
def test_responses_however_they_were_saved(read, tmp_path, shape):
    rows = [response("a", [3, 0, 1], [3, 3, 2]), plain_response("p"), response("b", [0], [1])]
    path = tmp_path / "x"
    if shape == "stream":
        chunks = [{"id": row["id"], "choices": [{"delta": {"content": "."}}]} for row in rows]
        path.write_text("".join(
            f"data: {json.dumps(chunk)}\n\ndata: {json.dumps({**row, 'choices': []})}\n\ndata: [DONE]\n\n"
            for chunk, row in zip(chunks, rows, strict=True)
        ))  # fmt: skip
    else:
        path.write_text("\n".join(json.dumps(row, indent=2) for row in rows) if shape == "pretty" else json.dumps(rows))
    wanted = read("vllm-detailed", write_lines(tmp_path / "lines.jsonl", *rows))
    found = read("auto", path)
    assert [request.request_id for request in found.requests] == ["a", "p", "b"]
    for one, other in zip(found.requests, wanted.requests, strict=True):
        assert dict(one.num_tokens) == dict(other.num_tokens)
        for name, rounds in other.rounds.items():
            assert one.rounds[name].accepted.tolist() == rounds.accepted.tolist()


def test_bad_lines_are_skipped(read, tmp_path):
    rows = [response("a", [1], [2]), response("b", [3], [2]), response("a", [1], [1]), response("c", [1], [1])]
    trace = read("vllm-detailed", write_lines(tmp_path / "x.jsonl", *rows), skip_bad_lines=True)
    assert [request.request_id for request in trace.requests] == ["a", "c"]
    assert trace.meta.notes[-1].startswith("2 bad lines were skipped (--skip-bad-lines); the first: ")
