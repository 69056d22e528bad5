"""SGLang's log, TensorRT-LLM's iterations, and tables of lengths by K: acceptance of all requests together."""

import json

import numpy as np
import pytest
from paceline.traces.importers import Load

from ..foreign_files import decode_batch, iteration, write_lines, write_text

LOAD = Load(requests=5, output_tokens=40, prompt_tokens=7)
ARGS = (
    "[2026-05-02] server_args=ServerArgs(model_path='m', speculative_algorithm='{}', speculative_num_steps={}, "
    "speculative_eagle_topk={}, speculative_num_draft_tokens={})"
)


def mean_of(drafter):
    """Tokens that steps of the drafter's window emit."""
    hazards = [*drafter.stated.hazards] + [drafter.stated.hazards[-1]] * drafter.window
    return 1 + float(np.cumprod(hazards[: drafter.window]).sum())


def drafter_of(trace):
    assert len(trace.requests) == LOAD.requests
    return trace.meta.drafters[0]


@pytest.mark.parametrize("window", range(1, 9))
@pytest.mark.parametrize("old", [False, True])
def test_sglangs_lines_say_the_mean_and_the_window(read, tmp_path, window, old):
    """Both definitions of the rate: of proposed tokens, and of those with the target's own."""
    means, running = (1 + 0.31 * window, 1 + 0.74 * window, 1 + 0.55 * window), (3, 1, 6)
    lines = [
        decode_batch(mean, mean / (window + 1) if old else (mean - 1) / window, running=batch)
        for mean, batch in zip(means, running, strict=True)
    ]
    settings = ARGS.format("EAGLE3", window, 1, window + 1)
    trace = read("auto", write_text(tmp_path / "s.log", settings, "Prefill batch, #new-seq: 1", *lines), load=LOAD)
    assert (trace.meta.source, trace.meta.form) == ("sglang-log", "mean")
    drafter = drafter_of(trace)
    assert drafter.window == window
    assert mean_of(drafter) == pytest.approx(np.average(means, weights=running), abs=0.006)
    assert not any("trees" in note for note in trace.meta.notes)


def test_the_window_follows_from_the_rates_or_is_asked_for(read, refusal, tmp_path):
    path = write_text(tmp_path / "a.log", decode_batch(2.9, 0.48), decode_batch(3.1, 0.53))
    assert drafter_of(read("auto", path, load=LOAD)).window == 4
    older = write_text(tmp_path / "b.log", decode_batch(2.9, None))
    assert "window: must be stated" in refusal("auto", older, load=LOAD)
    assert mean_of(drafter_of(read("auto", older, load=LOAD, windows={"drafter": 3}))) == pytest.approx(2.9)
    assert "must be at most the 4 tokens" in refusal("auto", path, load=LOAD, windows={"drafter": 6})


def test_a_tree_counts_as_its_deepest_path(read, tmp_path):
    lines = [decode_batch(2.9, 1.9 / 15), decode_batch(3.1, 2.1 / 15)]
    for told, windows in ([ARGS.format("EAGLE3", 4, 4, 16)], {}), ([], {"drafter": 4}):
        trace = read("auto", write_text(tmp_path / "s.log", *told, *lines), load=LOAD, windows=windows)
        assert drafter_of(trace).window == 4
        assert any("more tokens than chains of 4 have" in note for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([decode_batch(None, None)], "1 Decode batch lines without one: the server ran without speculation"),
        ([decode_batch(2.9, 0.63), decode_batch(None, None)], "line 2: accept len: must stand in each line"),
        ([decode_batch(2.9, 0.63, more="avg accepted drafts: 2, ")], "avg accepted drafts: 2"),
        ([decode_batch(2.9, 0.63).replace("accept len", "accept length")], "accept length: 2.90"),
        ([decode_batch(2.9, 0.63).replace("2.90", "nan")], "accept len: nan"),
        ([decode_batch(2.9, 0.63, more="cap len: 2.50, ")], "cap len: must not be there"),
        ([decode_batch(2.9, 0.63), decode_batch(2.9, 0.27)], "must fit one number of tokens proposed in a step"),
        ([decode_batch(0.5, 0.1)], "must be at least 1"),
        ([decode_batch(2.9, 0.63, running=0)], "#running-req: must be at least 1"),
        (
            [ARGS.format("EAGLE3", 3, 1, 4).replace(")", ", speculative_adaptive=True)"), decode_batch(2.9, 0.63)],
            "speculative_adaptive: must be off",
        ),
    ],
)
def test_lines_near_those_of_sglang_are_refused(refusal, tmp_path, lines, told):
    assert told in refusal("auto", write_text(tmp_path / "s.log", *lines), load=LOAD)


def test_iterations_of_several_requests_state_a_mean(read, tmp_path):
    found = [
        iteration(1, 0, None, 0, generating=0),
        iteration(2, 8, 24, 12, generating=8),
        iteration(3, 0, 0, 0, generating=4),
        iteration(4, 4, 12, 3, generating=4),
        iteration(4, 4, 12, 3, attentionDpRank=1),
    ]
    for path in (write_lines(tmp_path / "i.jsonl", *found), write_lines(tmp_path / "i.json", found)):
        trace = read("auto", path, load=LOAD)
        assert (trace.meta.source, trace.meta.form) == ("trtllm-iterations", "mean")
        drafter = drafter_of(trace)
        assert drafter.window == 3
        assert mean_of(drafter) == pytest.approx(1 + 15 / 12)
        assert drafter.stated.drafting == pytest.approx(12 / 16)
        assert any(note.startswith("1 iterations of further ranks") for note in trace.meta.notes)


def test_iterations_of_one_request_state_each_place(read, tmp_path):
    kept = [3, 0, 1, 3, 2, 0]
    trace = read(
        "auto", write_lines(tmp_path / "i.jsonl", *(iteration(n, 1, 3, k) for n, k in enumerate(kept))), load=LOAD
    )
    assert trace.meta.form == "rates"
    np.testing.assert_allclose(np.cumprod(drafter_of(trace).stated.hazards), [4 / 6, 3 / 6, 2 / 6])


def test_drafts_of_differing_lengths_keep_what_was_kept(read, tmp_path):
    """Six drafts of one token and six of three: one rate with which they keep 11 together."""
    trace = read("auto", write_lines(tmp_path / "i.jsonl", iteration(1, 6, 6, 4), iteration(2, 6, 18, 7)), load=LOAD)
    (rate,) = drafter_of(trace).stated.hazards
    assert 6 * rate + 6 * (rate + rate**2 + rate**3) == pytest.approx(11)
    assert any(note.startswith("drafts were 2.00 tokens long on average, of 3") for note in trace.meta.notes)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([iteration(1, 0, None, 0)], "must tell of a draft in some iteration"),
        ([iteration(1, 8, 24, 25)], "numAcceptedTokens: must be at most the 24 drafted, got 25"),
        ([iteration(1, 8, 7, 1)], "numDraftTokens: must be at least 8, one a request, got 7"),
        ([iteration(1, 8, 24, 12, rank=0)], "rank: must be left out"),
        ([{**iteration(1, 8, 24, 12), "specDecodingStats": {"numDraftTokens": 3}}], "numAcceptedTokens: must be there"),
        ([iteration(1, 8, 24, 12), {"other": 1}], "line 2: specDecodingStats: must be there"),
    ],
)
def test_iterations_that_do_not_fit_are_refused(refusal, tmp_path, found, told):
    assert told in refusal("trtllm-iterations", write_lines(tmp_path / "i.jsonl", *found), load=LOAD)


def test_a_length_of_the_iteration_that_its_counts_deny(refusal, tmp_path):
    found = iteration(1, 8, 24, 12)
    found["specDecodingStats"]["acceptanceLength"] = 3.5
    assert "must be (accepted + requests) / requests, 2.5000, got 3.5" in refusal(
        "trtllm-iterations", write_lines(tmp_path / "i.jsonl", found), load=LOAD
    )


def test_iterations_as_python_prints_them_are_named(refusal, tmp_path):
    told = refusal("auto", write_text(tmp_path / "i.log", str(iteration(1, 8, 24, 12))), load=LOAD)
    assert "trtllm-iterations is told by specDecodingStats" in told


CURVE = {1: 1.8, 2: 2.4, 3: 2.85, 4: 3.1}
YAML = ["# golden", "_metadata:", "  draft-model: some/drafter", "some-model:", "  thinking_on:"]


@pytest.mark.parametrize(
    "write",
    [
        lambda p: write_text(p, "k,acceptance_length", *(f"{k},{v}" for k, v in CURVE.items())),
        lambda p: write_text(p, "num_speculative_tokens, AL", *(f"{k}, {v}" for k, v in CURVE.items())),
        lambda p: write_lines(p, {str(k): v for k, v in CURVE.items()}),
        lambda p: write_lines(p, {"some-model": {"on": {str(k): v for k, v in CURVE.items()}}, "_about": {"x": "y"}}),
        lambda p: write_lines(p, *({"num_speculative_tokens": k, "acceptance_length": v} for k, v in CURVE.items())),
        lambda p: write_text(p, json.dumps([{"K": k, "al": v} for k, v in CURVE.items()])),
        lambda p: write_text(p, *YAML, *(f"    {k}: {v}" for k, v in CURVE.items())),
    ],
)
def test_lengths_by_k_are_met_at_every_k(read, tmp_path, write):
    trace = read("auto", write(tmp_path / "golden"), load=LOAD)
    assert (trace.meta.source, trace.meta.form) == ("acceptance-by-k", "rates")
    drafter = drafter_of(trace)
    lengths = 1 + np.cumsum(np.cumprod(drafter.stated.hazards))
    np.testing.assert_allclose(lengths, [*CURVE.values()])


def test_one_k_alone_and_gaps(read, tmp_path):
    alone = read("auto", write_lines(tmp_path / "a.json", {"3": 2.52}), load=LOAD)
    assert alone.meta.form == "mean"
    rate, second, third = drafter_of(alone).stated.hazards
    assert rate == pytest.approx(second) == pytest.approx(third)
    assert mean_of(drafter_of(alone)) == pytest.approx(2.52)
    gaps = read("auto", write_lines(tmp_path / "g.json", {"2": 2.4, "4": 3.1}), load=LOAD)
    lengths = 1 + np.cumsum(np.cumprod(drafter_of(gaps).stated.hazards))
    np.testing.assert_allclose(lengths[[1, 2, 3]], [2.4, 2.75, 3.1])
    assert any(note.startswith("the table has K = 2, 4: ") for note in gaps.meta.notes)


def test_noise_is_smoothed_and_said_and_more_than_noise_is_refused(read, refusal, tmp_path):
    noisy = {"1": 1.8, "2": 2.5, "3": 2.9, "4": 3.4, "5": 3.6}
    trace = read("auto", write_lines(tmp_path / "n.json", noisy), load=LOAD)
    assert any("K = 3 2.90 as 2.95" in note for note in trace.meta.notes)
    broken = {"1": 1.8, "2": 2.0, "3": 2.9}
    assert "K = 2: must be near 2.35: drafts cannot keep later tokens more often" in refusal(
        "auto", write_lines(tmp_path / "b.json", broken), load=LOAD
    )


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (lambda p: write_text(p, *YAML, "    1: 1.8", "  thinking_off:", "    1: 1.9"),
         "got 'some-model/thinking_on, some-model/thinking_off'"),
        (lambda p: write_lines(p, {"1": 2.5}), "K = 1: must have a length in [1, 2], got 2.5"),
        (lambda p: write_lines(p, {"0": 1.0, "1": 1.5}), "0: must be a K in [1, 1024], got 0"),
        (lambda p: write_text(p, "k,al", "1,1.5", "1,1.6"), "line 3: k: must be there once"),
        (lambda p: write_text(p, "k,al", "1,x"), "line 2: al: must be a number"),
        (lambda p: write_text(p, "k,al,model", "1,1.5,m"), "model: must be one of k, num_speculative_tokens"),
        (lambda p: write_text(p, *YAML, "    1: 1.8", "    note: good"), "must map each K to a length"),
        (lambda p: write_text(p, *YAML, "    1: 1.8", "    - 2"), "line 7: line: must be NAME: or K: LENGTH"),
    ],
)  # fmt: skip
def test_tables_that_are_none_are_refused(refusal, tmp_path, write, told):
    assert told in refusal("acceptance-by-k", write(tmp_path / "x"), load=LOAD)
