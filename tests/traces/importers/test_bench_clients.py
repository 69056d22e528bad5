"""vLLM's metrics of each request, as AIPerf and GuideLLM keep them."""

import numpy as np
import pytest
from paceline.traces.rounds.rounds import TARGET_ALONE

from .foreign_files import aiperf, guidellm, plain_response, response, summary, write_lines


def test_aiperf_lists_steps(read, tmp_path):
    path = write_lines(tmp_path / "p.jsonl", aiperf("a", [2, 0, 3], [3, 3, 3]), aiperf("b", [1, 0], [2, 2]))
    trace = read("auto", path)
    assert (trace.meta.source, trace.meta.form) == ("aiperf", "rounds")
    first = trace.requests[0]
    assert (first.request_id, first.prompt_tokens, first.num_tokens["drafter"]) == ("a", 12, 9)
    rounds = first.rounds["drafter"]
    np.testing.assert_array_equal(rounds.start, [1, 4, 5])
    np.testing.assert_array_equal(rounds.accepted, [2, 0, 3])
    np.testing.assert_array_equal(rounds.drafted, [3, 3, 3])  # the last kept all of it: censored


def test_aiperf_histograms_are_sparse(read, tmp_path):
    path = write_lines(tmp_path / "p.jsonl", aiperf("a", [0, 3, 3, 0, 3], [3] * 5, listed=False))
    trace = read("auto", path)
    assert trace.meta.form == "histograms"
    rounds = trace.requests[0].rounds["drafter"]
    assert sorted(rounds.accepted.tolist()) == [0, 0, 3, 3, 3]
    assert rounds.placed.all()


def test_aiperf_leaves_out_what_says_nothing_and_counts_it(read, tmp_path):
    bare = aiperf("c", [1], [2])
    del bare["spec_decode_acceptance"]
    records = [
        aiperf("w", [1], [2], phase="warmup"),
        aiperf("a", [1], [2]),
        bare,
        aiperf("e", [1], [2], error={"code": 500}),
    ]
    trace = read("auto", write_lines(tmp_path / "p.jsonl", *records))
    assert [request.request_id for request in trace.requests] == ["a"]
    notes = " ".join(trace.meta.notes)
    for words in ("1 requests of the warm-up", "1 requests that failed", "1 requests without acceptance"):
        assert words in notes


def test_guidellm_has_vllms_metrics_as_they_came(read, tmp_path):
    report = guidellm(
        response("a", [2, 0, 3], [3] * 3), summary("b", [3, 2, 1]), plain_response("p", tokens=6), incomplete=2
    )
    trace = read("auto", write_lines(tmp_path / "g.json", report))
    assert (trace.meta.source, trace.meta.form) == ("guidellm", "histograms")
    np.testing.assert_array_equal(trace.requests[0].rounds["drafter"].accepted, [2, 0, 3])
    assert sorted(trace.requests[1].rounds["drafter"].accepted.tolist()) == [0, 0, 0, 1, 1, 2]
    assert dict(trace.requests[2].num_tokens) == {TARGET_ALONE: 6}
    assert not trace.requests[2].rounds
    assert any(note.startswith("2 requests that failed") for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("format_name", "found", "told"),
    [
        (
            "aiperf",
            {**aiperf("a", [1], [2]), "spec_decode_acceptance": None},
            "spec_decode_acceptance: must stand in some",
        ),
        (
            "aiperf",
            aiperf("a", [2, 3], [2, 2]),
            "spec_decode_acceptance.accepted, step 1: must be at most the 2 drafted",
        ),
        ("aiperf", aiperf("a", [2, 1], [2, 2], tokens=3), "spec_decode_acceptance.completion_tokens: must be at least"),
        (
            "guidellm",
            guidellm({**response("a", [1], [2]), "metrics": None}),
            "speculative_decoding: must stand in some",
        ),
        ("guidellm", guidellm(response("a", [1], [2]), response("a", [1], [2])), "request_id: must be unique, got 'a'"),
        ("guidellm", guidellm(response("a", [3], [2])), "must be at most the 2 drafted, got 3"),
    ],
)
def test_what_does_not_fit_is_refused(refusal, tmp_path, format_name, found, told):
    assert told in refusal(format_name, write_lines(tmp_path / "x.json", found))
