"""The log of llama.cpp's server: its wordings, its slots, its second line, and what is none of them."""

import numpy as np
import pytest

from ..foreign_files import WORDINGS, llamacpp_lines, new_llamacpp_lines, statistics, write_text

WINDOW = {"windows": {"drafter": 4}}
SECOND = "requests had their drafts counted otherwise in the line of statistics, which holds"


def totals(request):
    """(rounds that drafted, drafted tokens, accepted tokens) of a request."""
    rounds = request.rounds["drafter"]
    return int((rounds.drafted > 0).sum()), int(rounds.drafted.sum()), int(rounds.accepted.sum())


@pytest.mark.parametrize("wording", WORDINGS)
def test_every_wording_is_read(read, tmp_path, wording):
    lines = [
        *new_llamacpp_lines(516, 564, 374, wording=wording, more=[statistics(1, 141, 564, 374)]),
        *new_llamacpp_lines(342, 392, 243, wording=wording, task=146, more=[statistics(2, 239, 956, 617)]),
    ]
    options = {} if wording == "length" else WINDOW  # rates per position tell how many tokens are drafted
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **options)
    assert trace.meta.source == "llamacpp-log"
    assert trace.meta.drafters[0].window == 4
    assert [totals(request) for request in trace.requests] == [(141, 564, 374), (98, 392, 243)]
    assert not any("otherwise" in note for note in trace.meta.notes)


def test_rates_on_a_line_of_their_own_tell_the_window(read, tmp_path):
    told = "0.1 T slot print_timing: id  0 | task 0 |      acc per pos = (0.809, 0.723, 0.596, 0.525)"
    lines = new_llamacpp_lines(516, 564, 374, more=[told])
    trace = read("auto", write_text(tmp_path / "server.log", *lines))
    assert trace.meta.drafters[0].window == 4


def test_the_window_must_be_stated_where_no_line_tells_it(refusal, tmp_path):
    path = write_text(tmp_path / "x.log", *new_llamacpp_lines(516, 564, 374))
    assert "window: must be stated" in refusal("auto", path)


@pytest.mark.parametrize("prefix", ["I ", "I spec common_specu: ", "I slot print_timing: id  0 | task 0 | "])
def test_the_second_line_holds_where_the_two_disagree(read, tmp_path, prefix):
    """A hybrid target: 115 of 115 says the first line, 115 of 214 the second."""
    lines = [
        *new_llamacpp_lines(260, 115, 115, more=[statistics(1, 81, 214, 115, prefix=prefix)]),
        *new_llamacpp_lines(100, 40, 40, more=[statistics(2, 111, 304, 155, prefix=prefix)]),
        *new_llamacpp_lines(50, None, more=[statistics(3, 121, 334, 161, prefix=prefix)]),  # no round was kept whole
    ]
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **WINDOW)
    assert [totals(request) for request in trace.requests] == [(81, 214, 115), (30, 90, 40), (10, 30, 6)]
    assert f"3 {SECOND}" in trace.meta.notes


def test_statistics_of_several_methods_are_added(read, tmp_path):
    lines = new_llamacpp_lines(
        60, 30, 20, more=[statistics(1, 4, 16, 10, method="ngram-mod"), statistics(1, 6, 14, 10)]
    )
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **WINDOW)
    assert totals(trace.requests[0]) == (10, 30, 20)
    assert len(trace.requests[0].rounds["drafter"].start) == 39  # the others drafted nothing


def test_a_log_that_begins_later_and_a_server_that_is_started_anew(read, tmp_path):
    lines = [
        *new_llamacpp_lines(60, 40, 30, more=[statistics(7, 500, 2000, 900)]),  # it counts what nobody saw
        *new_llamacpp_lines(60, 40, 40, more=[statistics(8, 520, 2080, 940)]),
        *new_llamacpp_lines(60, 40, 40, more=[statistics(1, 20, 80, 40)]),
    ]
    trace = read("auto", write_text(tmp_path / "server.log", *lines), **WINDOW)
    assert [totals(request)[1:] for request in trace.requests] == [(40, 30), (80, 40), (80, 40)]


def test_lines_of_slots_that_ran_at_once(read, refusal, tmp_path):
    """Statistics are of all slots together, so that they say nothing of one request."""
    first = new_llamacpp_lines(60, 40, 30, slot=0, task=0, more=[statistics(2, 20, 90, 60)])
    second = new_llamacpp_lines(70, 60, 35, slot=1, task=1, more=[statistics(2, 30, 100, 65)])
    trace = read("auto", write_text(tmp_path / "a.log", *first, *second), **WINDOW)
    assert [totals(request)[1:] for request in trace.requests] == [(40, 30), (60, 35)]
    mixed = [line for pair in zip(first, second, strict=True) for line in pair if "statistics" not in line]
    trace = read("auto", write_text(tmp_path / "b.log", *mixed), **WINDOW)
    assert [(*request.num_tokens.values(), *totals(request)[1:]) for request in trace.requests] == [
        (60, 40, 30), (70, 60, 35),
    ]  # fmt: skip
    whole = [
        *new_llamacpp_lines(60, 30, 30, slot=0, task=0, more=[statistics(2, 20, 90, 60)]),
        *new_llamacpp_lines(70, 35, 35, slot=1, task=1, more=[statistics(3, 30, 140, 75)]),
        *new_llamacpp_lines(70, 35, 35, slot=0, task=2, more=[statistics(3, 45, 190, 100)]),
    ]
    told = refusal("llamacpp-log", write_text(tmp_path / "c.log", *whole), **WINDOW)
    assert "draft acceptance: must not be all that was drafted where statistics know of refusals" in told


@pytest.mark.parametrize(
    "line",
    [
        "slot print_timing: id  0 | task 0 | draft acceptance = 66% (374 of 564)",
        "slot print_timing: id  0 | task 0 | draft acceptance = 0.66 (  374 accepted /   564 generated), depth = 3",
        "slot print_timing: id  0 | task 0 | accepted drafts = 12, rejected drafts = 4",
        "slot print_timing: id  0 | task 0 | drafted 564 tokens",
        "slot print_timing: id  0 | task 0 | acceptance length = 3.6",
        "statistics concat: k1 = 2, rounds = 30, mtp_accepted = 44/60",
        "llama_decode: statistics ngram_map_k: #draft tokens = 21, #gen tokens = 18, #acc tokens = 12, #res tokens = 6",
        "I srv  spec: draft hit rate: 0.71",
        "draft tokens: 30",
    ],
)
def test_figures_of_drafts_in_other_words_are_refused(refusal, tmp_path, line):
    path = write_text(tmp_path / "x.log", *new_llamacpp_lines(60, 40, 30), line)
    told = refusal("llamacpp-log", path, **WINDOW)
    assert "x.log: line 8: line: must be a known line: this one gives figures of drafts or acceptance" in told
    assert " ".join(line.split())[-30:] in told


@pytest.mark.parametrize(
    "line",
    [
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
    ],
)
def test_what_a_server_says_of_its_drafter_is_no_figure(read, tmp_path, line):
    path = write_text(tmp_path / "x.log", line, *new_llamacpp_lines(60, 40, 30))
    assert totals(read("auto", path, **WINDOW).requests[0])[1:] == (40, 30)


@pytest.mark.parametrize(
    "around",
    ["{}", "\x1b[32m{}\x1b[0m", "2026-05-14 22:40:29.046 | {}", "[53409] {}", "Nov 26 01:02:03 host llama[7]: {}\r"],
)
def test_lines_may_stand_within_those_of_whoever_wrote_them_down(read, tmp_path, around):
    lines = [around.format(line) for line in new_llamacpp_lines(60, 40, 30, more=[statistics(1, 29, 40, 30)])]
    trace = read("auto", write_text(tmp_path / "x.log", *lines), **WINDOW)
    assert totals(trace.requests[0])[1:] == (40, 30)


def test_the_absence_of_drafts_is_told(read, tmp_path):
    alone = read("auto", write_text(tmp_path / "a.log", *new_llamacpp_lines(60), *llamacpp_lines(9)))
    assert "nothing in these files tells of drafts: every answer is taken to be the target's alone" in alone.meta.notes
    mixed = read(
        "auto", write_text(tmp_path / "m.log", *new_llamacpp_lines(60), *new_llamacpp_lines(60, 40, 30)), **WINDOW
    )
    words = "answers have no line of drafts among others that do: taken to be the target's alone"
    assert f"1 {words}" in mixed.meta.notes


def test_a_log_that_is_none(refusal, tmp_path):
    path = write_text(tmp_path / "x.log", "draft acceptance rate = 0.5 ( 3 accepted / 6 generated)")
    assert "line 1: draft acceptance: must follow the eval time of its request" in refusal("llamacpp-log", path)
    twice = [*llamacpp_lines(30, 40, 12)[:-1], "draft acceptance rate = 0.5 ( 3 accepted / 6 generated)"]
    told = refusal("llamacpp-log", write_text(tmp_path / "t.log", *twice), **WINDOW)
    assert "line 6: draft acceptance: must follow the eval time of its request" in told
    path = write_text(tmp_path / "y.log", "nothing of that kind")
    assert "content: must hold eval time = ... ms / N tokens, got 'no such line'" in refusal("llamacpp-log", path)
    path = write_text(tmp_path / "z.log", new_llamacpp_lines(30)[1])
    assert "content: must hold eval time = ... ms / N tokens, got 'no such line'" in refusal("llamacpp-log", path)


def test_seconds_are_those_of_each_request(read, tmp_path):
    trace = read("auto", write_text(tmp_path / "x.log", *new_llamacpp_lines(60, 40, 30)), **WINDOW)
    request = trace.requests[0]
    np.testing.assert_allclose([request.prefill_s["drafter"], request.wall_s["drafter"]], [0.6523, 4.74527])
