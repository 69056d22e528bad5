"""Closed loops as workloads: what begins when, what is counted, and what they do not go with."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.traces.workloads import lines_of_workload, open_workload
from paceline.traces.workloads.summary import summary_of

S = 10**12
AGENT = "persistent-agent:turns=2,prompt=10,output=5,sessions=6,wait=7200"
ROWS = "arrived_at,num_prefill_tokens,num_decode_tokens\n1,10,3\n2,20,5\n3,30,9\n4,40,2\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def test_a_file_is_taken_in_its_order_whatever_its_times(file):
    first, second = open_workload(file, concurrency=2)
    assert [one.arrives_ps for one in (first, second)] == [0, 0]
    (third,) = second.turns.after(5 * S)
    (fourth,) = first.turns.after(6 * S)
    assert [(one.arrives_ps, one.prompt_tokens) for one in (third, fourth)] == [(5 * S, 30), (6 * S, 40)]
    assert third.turns.after(7 * S) == fourth.turns.after(8 * S) == []


def test_each_iteration_begins_anew_and_few_requests_all_begin(file):
    workload = open_workload(file, concurrency=9, limit=3, max_prompt_tokens=15)
    assert [one.prompt_tokens for one in workload] == [one.prompt_tokens for one in workload] == [10, 15, 15]
    assert workload.about.notes == (
        "closed loop: 9 requests at any time, the next of which begins when one has ended",
        "limited to the first 3 arrivals",
        "prompts cut to 15 tokens: 2",
        "the closed loop never holds the 9 asked for: the workload has fewer: 3",
    )
    enough = open_workload(file, concurrency=4)
    assert len([*enough]) == 4
    assert not any("fewer" in note for note in enough.about.notes)


def test_nothing_begins_at_the_horizon(file):
    (first,) = open_workload(file, concurrency=1, horizon_s=5)
    (second,) = first.turns.after(5 * S - 1)
    assert second.turns.after(5 * S) == []


def test_a_session_is_over_when_its_last_request_is_and_long_waits_are_cut():
    workload = open_workload(AGENT, active_sessions=1, max_wait_s=30)
    (first,) = workload
    (turn,) = first.turns.after(S)
    assert (turn.request_id, turn.arrives_ps) == ("1/1", 31 * S)
    (following,) = turn.turns.after(40 * S)
    assert (following.request_id, following.arrives_ps) == ("2", 40 * S)
    assert "waits within sessions cut to 30 s: 1" in workload.about.notes


def test_a_turn_that_the_horizon_leaves_out_keeps_its_session_going():
    (first,) = open_workload(AGENT, active_sessions=1, horizon_s=100)
    assert first.turns.after(S) == []


def test_all_that_is_drawn_is_counted():
    found = summary_of(open_workload("closed:concurrency=3,requests=50,prompt=5..9,output=geometric:4", seed=2))
    assert (found.num_requests, found.num_arrivals, found.num_sessions, found.rate) == (50, 50, 0, None)
    other = summary_of(open_workload("poisson:rate=1,requests=50,prompt=5..9,output=geometric:4", seed=2))
    assert (found.prompt_tokens, found.output_tokens) == (other.prompt_tokens, other.output_tokens)


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        (None, {"concurrency": 0}, "`concurrency` must be in"),
        (None, {"concurrency": 2, "rate": 3}, "`concurrency` must be left out beside `rate`, got 2 and 3"),
        (None, {"concurrency": 2, "time_scale": 3}, "`concurrency` must be left out beside `time_scale`"),
        (None, {"concurrency": 2, "active_sessions": 3}, "`concurrency` must be left out beside `active_sessions`"),
        (AGENT, {"active_sessions": 2, "rate": 3}, "`active_sessions` must be left out beside `rate`"),
        (f"{AGENT},rate=3", {"active_sessions": 2}, "`active_sessions` must be left out: .* has rate, got 2"),
        (AGENT, {"concurrency": 2}, "`concurrency` must be left out where the workload has sessions"),
        (AGENT, {"max_wait_s": -1}, "`max_wait_s` must be in"),
        ("poisson:rate=1,requests=2,prompt=1,output=1", {"max_wait_s": 1}, "`max_wait_s` is for sessions, got 1"),
        ("closed:concurrency=2,requests=2,prompt=1,output=1", {"time_scale": 2}, "beside `time_scale`"),
    ],
)
def test_what_does_not_go_with_it_is_refused(file, text, options, told):
    with pytest.raises(ArgumentError, match=told):
        list(open_workload(text or file, **options))


def test_sessions_of_a_file_are_refused_when_they_begin(tmp_path):
    path = tmp_path / "own.jsonl"
    turns = '[{"wait_s": 1, "prompt_tokens": 30, "output_tokens": 5}]'
    path.write_text(f'{{"arrives_s": 0, "prompt_tokens": 9, "output_tokens": 5, "turns": {turns}}}\n')
    with pytest.raises(ArgumentError, match=r"`concurrency` must be left out where .*, got one of request 1"):
        list(open_workload(path, concurrency=2))


def test_it_has_no_lines():
    with pytest.raises(ArgumentError, match="lines must be of a workload with times of arrival"):
        list(lines_of_workload(open_workload("closed:concurrency=2,requests=3,prompt=1,output=1")))
