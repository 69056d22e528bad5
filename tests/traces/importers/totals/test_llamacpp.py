"""llama.cpp's totals of each request, from responses and from its log."""

import pytest

from ..foreign_files import llamacpp_lines, timings, write_lines, write_text

REQUESTS = [(2048, 1207, 1186), (40, None, 0), (30, 60, 12), (5, 8, 4)]
WINDOW = {"windows": {"drafter": 4}}


@pytest.fixture(params=["llamacpp-timings", "llamacpp-log"])
def recording(request, read, tmp_path):
    if request.param == "llamacpp-timings":
        path = write_lines(tmp_path / "x.jsonl", *(timings(*told) for told in REQUESTS))
    else:
        path = write_text(tmp_path / "x.log", *(line for told in REQUESTS for line in llamacpp_lines(*told)))
    trace = read("auto", path, **WINDOW)
    assert (trace.meta.source, trace.meta.form) == (request.param, "request means")
    return trace


def test_rounds_meet_the_totals(recording):
    assert [dict(request.num_tokens) for request in recording.requests] == [
        {"drafter": 2048}, {"": 40}, {"drafter": 30}, {"drafter": 5},
    ]  # fmt: skip
    for request, (tokens, drafted, accepted) in zip(recording.requests, REQUESTS, strict=True):
        if drafted is None:
            assert not request.rounds
            continue
        rounds = request.rounds["drafter"]
        steps = max(tokens - 1 - accepted, -(-drafted // 4))
        assert len(rounds.start) == steps
        assert rounds.placed.all()
        assert rounds.start[0] == 1
        if steps == tokens - 1 - accepted:  # nothing was cut by the end of the answer
            assert (rounds.drafted.sum(), rounds.accepted.sum()) == (drafted, accepted)


def test_seconds_are_those_of_the_prompt_and_the_answer(recording):
    for request in recording.requests:
        method = next(iter(request.num_tokens))
        assert 0 < request.prefill_s[method] < request.wall_s[method]


def test_empty_fields_of_drafts_are_the_target_alone(read, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", timings(30, draft_n=None, draft_n_accepted=None))
    assert dict(read("llamacpp-timings", path).requests[0].num_tokens) == {"": 30}


def test_the_window_must_be_stated(refusal, tmp_path):
    path = write_lines(tmp_path / "x.jsonl", timings(30, 60, 12))
    told = refusal("llamacpp-timings", path)
    assert "line 1: timings.window: must be stated" in told
    assert "`windows` drafter=K" in told


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        (timings(30, 10, 12), "timings.draft_n_accepted: must be at most draft_n, 10, got 12"),
        (timings(30, -1, 0), "timings.draft_n: must be a whole number in [0, 2147483647], got -1"),
        (timings(30, 12, 12, prompt_ms="x"), "timings.prompt_ms: must be a number in [0, 1e+12], got 'x'"),
        (timings(30, draft_n=12), "timings.draft_n_accepted: must be there, got 'nothing'"),
        (timings(30, draft_n=12, draft_n_accept=6), "timings.draft_n_accepted: must be there"),
        (timings(30, draft_n_accepted=6), "timings.draft_n_accepted: must stand beside draft_n and draft_n_accepted"),
        (timings(30, draft_total=12, n_accept=6), "timings.draft_total: must stand beside draft_n"),
        (timings(30, spec_tokens=12), "timings.spec_tokens: must stand beside draft_n"),
        (timings(2_000_000, 12, 6), "timings.steps: must be at most 1000000, with the tokens"),
    ],
)
def test_what_does_not_fit_is_refused(read, tmp_path, told, rule):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the rule is compared
        read("llamacpp-timings", write_lines(tmp_path / "x.jsonl", told), **WINDOW)
    assert rule in str(error.value)
