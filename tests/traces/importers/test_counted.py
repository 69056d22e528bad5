"""Logs that count rounds by request: what is imported meets the counts; where each round stood is drawn."""

import numpy as np
import pytest

from .foreign_files import (
    STATED,
    WORDINGS,
    llamacpp_lines,
    new_llamacpp_lines,
    plain_response,
    sglang,
    statistics,
    summary,
    timings,
    trtllm,
    write,
    write_lines,
    write_text,
)

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
    trace = read("auto", write_lines(tmp_path / "x.jsonl", build("a", [5, 3, 0, 7]), build("b", [2, 0, 0, 1])))
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


def test_plain_steps_cut_ends_and_the_seed(read, refusal, tmp_path, way):
    name, build = way
    path = write_lines(tmp_path / "x.jsonl", build("a", [2, 0, 3], tokens=emitted([2, 0, 3]) + 1 + 6))
    rounds = read(name, path).requests[0].rounds["drafter"]
    assert (len(rounds.start), (rounds.drafted == 0).sum(), histogram_of(rounds, 3)) == (5 + 6, 6, [2, 0, 3])
    whole = emitted([2, 1, 3]) + 1
    rounds = read(name, write_lines(tmp_path / "x.jsonl", build("a", [2, 1, 3], tokens=whole - 2))).requests[0].rounds
    assert (len(rounds["drafter"].start), int(rounds["drafter"].start[-1]) + 1) == (6, whole - 2)
    told = refusal(name, write_lines(tmp_path / "x.jsonl", build("a", [2, 1, 3], tokens=whole - 3)))
    assert f"must be at least what its steps emit, {whole} with the prefill's, but for one step's draft" in told
    path = write_lines(tmp_path / "x.jsonl", build("a", [20, 10, 20]))
    orders = {seed: tuple(read(name, path, seed=seed).requests[0].rounds["drafter"].accepted) for seed in (0, 0, 1, 2)}
    assert len(set(orders.values())) == 3
    assert orders[0] == tuple(read(name, path).requests[0].rounds["drafter"].accepted)


def test_drafts_shorter_than_the_window(read, tmp_path):
    trace = read("vllm-summary", write_lines(tmp_path / "x.jsonl", summary("a", [4, 2, 0, 2], drafted=17)))
    rounds = trace.requests[0].rounds["drafter"]
    assert rounds.drafted.sum() == 17
    assert (rounds.drafted >= rounds.accepted).all()


def adaptive(kept, proposed):
    """A response of SGLang whose depth was adapted: what its other counts say is as if it had been the greatest."""
    steps = sum(kept)
    return sglang("a", steps, emitted(kept) + 1, histogram=kept, window=None, spec_num_proposed_drafts=7 * steps,
                  spec_proposed_drafts_histogram=proposed)  # fmt: skip


TREES = "1 requests were proposed more tokens than chains of --window have: trees, of which the deepest path counts"


@pytest.mark.parametrize(
    ("line", "told", "window", "histogram", "is_tree"),
    [
        # 63 tokens proposed in a step are no window of 63.
        (sglang("a", 10, 22, histogram=[4, 2, 3, 1], window=63), "beyond 3: a tree was proposed, or a chain that no "
         "step kept whole, got '63 tokens proposed in a step'", 5, [4, 2, 3, 1], True),
        (sglang("a", 3, 7, histogram=[1, 1, 1], window=3), "got '3 tokens proposed in a step'", 3, [1, 1, 1], False),
        (sglang("a", 10, 26, window=63), "", 5, None, True),
        (adaptive([2, 3], [0, 0, 0, 0, 0, 0, 0, 5]), "goes beyond 1: a tree", 3, [2, 3], True),
    ],
)  # fmt: skip
def test_a_tree_counts_as_its_deepest_path(read, refusal, tmp_path, line, told, window, histogram, is_tree):
    path = write_lines(tmp_path / "x.jsonl", line)
    if told:
        assert told in refusal("sglang-meta", path)
    trace = read("sglang-meta", path, windows={"drafter": window})
    rounds = trace.requests[0].rounds["drafter"]
    assert trace.meta.drafters[0].window == window
    if histogram is not None:
        assert histogram_of(rounds, len(histogram)) == histogram
        assert (rounds.drafted == window).all()
    assert (trace.meta.notes[-1] == TREES) == is_tree


def test_the_window_of_sglang_is_that_of_the_whole_file(read, refusal, tmp_path):
    """One response that shows a chain, or what was drafted, shows it for all."""
    refused = sglang("a", 3, 7, histogram=[1, 1, 1], window=3)  # by itself: a tree, or a chain that no step kept whole
    whole, silent = sglang("b", 2, 7, histogram=[1, 0, 0, 1], window=3), sglang("c", 4, 9, window=None)
    less = sglang("d", 4, 8, histogram=[2, 1, 1], window=2)  # the server drafted less there
    part = sglang("e", 4, 8, histogram=[2, 1, 1], spec_draft_token_num=10, window=None)
    broken = {"meta_info": {"id": "f", "spec_verify_ct": "?"}}
    trace = read("sglang-meta", write_lines(tmp_path / "x.jsonl", refused, whole, silent, less, part))
    assert trace.meta.drafters[0].window == 3
    drafted = {request.request_id: int(request.rounds["drafter"].drafted.sum()) for request in trace.requests}
    assert drafted == {"a": 9, "b": 6, "c": 12, "d": 8, "e": 10}
    trace = read("sglang-meta", write_lines(tmp_path / "y.jsonl", broken, whole, refused), skip_bad_lines=True)
    assert len(trace.requests) == 2
    for other in (silent, less):
        assert "window: must be stated" in refusal("sglang-meta", write_lines(tmp_path / "z.jsonl", refused, other))


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
    ("name", "rows", "tokens", "empty"),
    [
        ("vllm-summary", [plain_response("p", tokens=7), summary("a", [1, 2]), plain_response("q", tokens=0)],
         [{"": 7}, {"drafter": 6}], 1),
        ("vllm-summary", [{**summary("a", [1], tokens=0)}, summary("b", [1, 1])], [{"drafter": 4}], 1),
        ("sglang-meta", [sglang("a", 0, 5), sglang("b", 2, 5, histogram=[1, 0, 1], window=2)],
         [{"": 5}, {"drafter": 5}], 0),
        ("llamacpp-timings", [timings(30, draft_n=None, draft_n_accepted=None)], [{"": 30}], 0),
    ],
)  # fmt: skip
def test_rows_of_the_target_alone_and_without_a_token(read, tmp_path, name, rows, tokens, empty):
    if empty and name == "vllm-summary":
        rows[0]["metrics"]["speculative_decoding"] = rows[0]["metrics"]["speculative_decoding"] and {
            **rows[0]["metrics"]["speculative_decoding"], "num_spec_tokens": 3}  # fmt: skip
    trace = read("auto", write_lines(tmp_path / "x.jsonl", *rows))
    assert trace.meta.source == name
    assert [dict(request.num_tokens) for request in trace.requests] == tokens
    assert ("1 answers without a token were left out" in trace.meta.notes) == bool(empty)


def test_a_mean_alone_gives_as_many_steps(read, tmp_path):
    """SGLang without a histogram, TensorRT-LLM without statistics: steps and tokens are known."""
    path = write_lines(tmp_path / "x.jsonl", sglang("a", 12, 31, window=None), sglang("b", 9, 25, window=None))
    trace = read("sglang-meta", path, windows={"drafter": 3})
    assert trace.meta.form == "request means"
    for request, steps in zip(trace.requests, (12, 9), strict=True):
        rounds = request.rounds["drafter"]
        assert len(rounds.start) == steps
        assert rounds.accepted.sum() + steps + 1 == request.num_tokens["drafter"]
    path = write_lines(tmp_path / "x.jsonl", trtllm("a", mean=2.5, tokens=50))
    rounds = read("trtllm", path, windows={"drafter": 4}).requests[0].rounds["drafter"]
    assert len(rounds.start) == 50 / 2.5 - 1  # the prefill's iteration counts in TensorRT-LLM's mean
    assert rounds.accepted.sum() == 50 - 1 - len(rounds.start)


# -- llama.cpp's totals, from responses and from its log


REQUESTS = [(2048, 1207, 1186), (40, None, 0), (30, 60, 12), (5, 8, 4)]
SECOND = "requests had their drafts counted otherwise in the line of statistics, which holds"


def totals(request):
    """(rounds that drafted, drafted tokens, accepted tokens) of a request."""
    rounds = request.rounds["drafter"]
    return int((rounds.drafted > 0).sum()), int(rounds.drafted.sum()), int(rounds.accepted.sum())


@pytest.mark.parametrize("name", ["llamacpp-timings", "llamacpp-log"])
def test_rounds_meet_the_totals_and_seconds_are_those_of_prompt_and_answer(read, tmp_path, name):
    of = timings if name == "llamacpp-timings" else llamacpp_lines
    told = [of(*one) for one in REQUESTS]
    lines = told if name == "llamacpp-timings" else [line for one in told for line in one]
    recording = read("auto", write(tmp_path / "x", *lines), **STATED[name])
    assert (recording.meta.source, recording.meta.form) == (name, "request means")
    for request, (tokens, drafted, accepted) in zip(recording.requests, REQUESTS, strict=True):
        ((method, count),) = request.num_tokens.items()
        assert (method, count) == ("" if drafted is None else "drafter", tokens)
        assert 0 < request.prefill_s[method] < request.wall_s[method]
        if drafted is None:
            assert not request.rounds
            continue
        rounds = request.rounds["drafter"]
        steps = max(tokens - 1 - accepted, -(-drafted // 4))
        assert (len(rounds.start), rounds.start[0]) == (steps, 1)
        assert rounds.placed.all()
        if steps == tokens - 1 - accepted:  # nothing was cut by the end of the answer
            assert (rounds.drafted.sum(), rounds.accepted.sum()) == (drafted, accepted)


@pytest.mark.parametrize("wording", WORDINGS)
def test_every_wording_is_read(read, tmp_path, wording):
    lines = [
        *new_llamacpp_lines(516, 564, 374, wording=wording, more=[statistics(1, 141, 564, 374)]),
        *new_llamacpp_lines(342, 392, 243, wording=wording, task=146, more=[statistics(2, 239, 956, 617)]),
    ]
    options = {} if wording == "length" else STATED["llamacpp-log"]  # rates per position tell the window
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **options)
    assert (trace.meta.source, trace.meta.drafters[0].window) == ("llamacpp-log", 4)
    assert [totals(request) for request in trace.requests] == [(141, 564, 374), (98, 392, 243)]
    assert not any("otherwise" in note for note in trace.meta.notes)
    told = "0.1 T slot print_timing: id  0 | task 0 |      acc per pos = (0.809, 0.723, 0.596, 0.525)"
    lines = new_llamacpp_lines(516, 564, 374, more=[told])
    assert read("auto", write_text(tmp_path / "server.log", *lines)).meta.drafters[0].window == 4


PREFIXES = ("I ", "I spec common_specu: ", "I slot print_timing: id  0 | task 0 | ")
# Lines, of each request its rounds that drafted, drafted and accepted tokens, how many statistics hold.
COUNTED = [
    # A hybrid target: 115 of 115 says the first line, 115 of 214 the second.
    *(([*new_llamacpp_lines(260, 115, 115, more=[statistics(1, 81, 214, 115, prefix=prefix)]),
        *new_llamacpp_lines(100, 40, 40, more=[statistics(2, 111, 304, 155, prefix=prefix)]),
        *new_llamacpp_lines(50, None, more=[statistics(3, 121, 334, 161, prefix=prefix)])],  # no round was kept whole
       [(81, 214, 115), (30, 90, 40), (10, 30, 6)], 3) for prefix in PREFIXES),
    # Several methods are added.
    (new_llamacpp_lines(60, 30, 20, more=[statistics(1, 4, 16, 10, method="ngram-mod"), statistics(1, 6, 14, 10)]),
     [(10, 30, 20)], 0),
    # A log that begins later counts what nobody saw, and a server that is started anew counts anew.
    ([*new_llamacpp_lines(60, 40, 30, more=[statistics(7, 500, 2000, 900)]),
      *new_llamacpp_lines(60, 40, 40, more=[statistics(8, 520, 2080, 940)]),
      *new_llamacpp_lines(60, 40, 40, more=[statistics(1, 20, 80, 40)])],
     [(29, 40, 30), (20, 80, 40), (20, 80, 40)], 2),
    # Statistics are of all slots together, so that they say nothing of one request.
    ([*new_llamacpp_lines(60, 40, 30, slot=0, task=0, more=[statistics(2, 20, 90, 60)]),
      *new_llamacpp_lines(70, 60, 35, slot=1, task=1, more=[statistics(2, 30, 100, 65)])],
     [(29, 40, 30), (34, 60, 35)], 0),
    ([line for pair in zip(new_llamacpp_lines(60, 40, 30), new_llamacpp_lines(70, 60, 35, slot=1, task=1), strict=True)
      for line in pair], [(29, 40, 30), (34, 60, 35)], 0),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "wanted", "second"), COUNTED)
def test_the_line_of_statistics_holds_where_it_is_of_one_request(read, tmp_path, lines, wanted, second):
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **STATED["llamacpp-log"])
    assert [totals(request) for request in trace.requests] == wanted
    assert [note for note in trace.meta.notes if SECOND in note] == ([f"{second} {SECOND}"] if second else [])


SAID = [
    "0.1 I srv    load_model: loading draft model '/models/Qwen3-0.6B-draft-v2.gguf'",
    "0.1 I spec common_specu: adding speculative implementation 'draft-mtp'",
    "0.1 I spec common_specu: - n_max=2, n_min=0, p_min=0.00, n_embd=5120, backend_sampling=1",
    "0.1 I srv    load_model: creating MTP draft context against the target model '/m/qwen3.8-27b.gguf'",
    "0.1 W srv   prompt_save:  - saving prompt with length 231, total state size = 67.785 MiB (draft: 0.456 MiB)",
    "0.1 D slot update_slots: id  0 | task 0 | created speculative checkpoint (size = 9.1 MiB, draft = 0.456 MiB)",
    "0.1 I slot update_slots: id  0 | task 0 | accepted  2/ 4 draft tokens (restore checkpoint)",
    "0.1 D slot update_slots: id  0 | task 0 | ignoring small draft: 1 < 2",
    "accept: low acceptance streak (3) - resetting ngram_mod",
    "0.1 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200",
    "2026-05-14 22:40:29.046 | 0.1 I srv          main: accepting requests",
    "0.1 I slot      release: id  0 | task 0 | stop processing: n_tokens = 33198, truncated = 0",
]


@pytest.mark.parametrize("said", SAID)
def test_what_a_server_says_of_its_drafter_is_no_figure(read, tmp_path, said):
    path = write_text(tmp_path / "x.log", said, *new_llamacpp_lines(60, 40, 30))
    assert totals(read("auto", path, **STATED["llamacpp-log"]).requests[0])[1:] == (40, 30)


@pytest.mark.parametrize(
    "around",
    ["{}", "\x1b[32m{}\x1b[0m", "2026-05-14 22:40:29.046 | {}", "[53409] {}", "Nov 26 01:02:03 host llama[7]: {}\r"],
)
def test_lines_may_stand_within_those_of_whoever_wrote_them_down(read, tmp_path, around):
    lines = [around.format(line) for line in new_llamacpp_lines(60, 40, 30, more=[statistics(1, 29, 40, 30)])]
    request = read("auto", write_text(tmp_path / "x.log", *lines), **STATED["llamacpp-log"]).requests[0]
    assert totals(request)[1:] == (40, 30)
    np.testing.assert_allclose([request.prefill_s["drafter"], request.wall_s["drafter"]], [0.6523, 4.74527])


def test_answers_without_a_line_of_drafts_are_told(read, tmp_path):
    lines = [*new_llamacpp_lines(60), *new_llamacpp_lines(60, 40, 30)]
    mixed = read("auto", write_text(tmp_path / "m.log", *lines), **STATED["llamacpp-log"])
    words = "answers have no line of drafts among others that do: taken to be the target's alone"
    assert f"1 {words}" in mixed.meta.notes
