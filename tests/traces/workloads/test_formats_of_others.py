"""Workloads of Qwen-Bailian, AIPerf and Dynamo, LLMServingSim, splitwise-sim and vLLM's benchmark."""

import re

import pytest
from paceline.traces import TraceFormatError
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.summary import summary_of

from .files import BAILIAN, DETAILS, LLMSERVINGSIM, MOONCAKE_SESSIONS, SPLITWISE, bailian_row, lines, write

MS = 10**9


def shown(workload):
    """(id, ms, prompt, output, wait in ms) of all requests, each ended as it arrives."""
    return [
        (one.request_id, one.arrives_ps / MS, one.prompt_tokens, one.output_tokens, None if wait is None else wait / MS)
        for arrival in workload
        for one, wait in requests_of(arrival)
    ]


def row(session, tokens, **more):
    return {"session_id": session, "input_length": tokens, "output_length": 10, **more}


def test_bailian_counts_seconds_and_blocks_of_16(tmp_path):
    workload = open_workload(write(tmp_path, BAILIAN))
    assert [(one.request_id, one.arrives_ps, one.prompt_tokens, one.blocks) for one in workload] == [
        ("1", 61_114 * MS, 40, (7, 8, 9)),
        ("2", 61_200 * MS, 16, (4,)),
        ("3", 63_000 * MS, 60, (7, 8, 11, 12)),
    ]
    assert workload.about.unit_tokens == 16
    assert summary_of(workload).shared_blocks == 2
    assert any("parent_chat_id, turn and type are not used" in note for note in workload.about.notes)


def test_sessions_of_mooncakes_lines_follow_by_their_delay(tmp_path):
    workload = open_workload(write(tmp_path, MOONCAKE_SESSIONS))
    assert shown(workload) == [
        ("1", 0, 655, 52, None),
        ("3", 120, 1100, 5, 120),
        ("2", 100, 300, 40, None),
        ("4", 102.5, 1240, 20, 2.5),  # 300 + 40 + 900: what was read and written before, and what it adds
        ("5", 700, 10, 4, None),
    ]
    assert any(note.startswith("requests of sessions without hash_ids") for note in workload.about.notes)


def test_texts_of_sessions_go_on(tmp_path):
    """Of 1,240 tokens two units of 512 are full: one of them was begun by the first prompt and its answer."""
    workload = open_workload(
        write(tmp_path, lines(row("a", 600, timestamp=0), row("a", 700), row("b", 600, timestamp=1)))
    )
    (first, second), (other,) = ([one for one, _ in requests_of(arrival)] for arrival in workload)
    assert second.blocks[: len(first.blocks)] == first.blocks
    assert len(first.blocks) == 1
    assert len(second.blocks) == 2
    assert not set(other.blocks) & {*second.blocks, *first.answer}


def test_sessions_without_timestamps_begin_at_once_or_at_a_rate(tmp_path):
    path = write(tmp_path, lines(row("a", 300), row("a", 150, delay=2), row("b", 10)))
    assert [one.arrives_ps for one in open_workload(path)] == [0, 0]
    begins = [one.arrives_ps for one in open_workload(path, rate=2.0)]
    assert begins[0] == 0 < begins[1]


def test_a_wait_that_only_timestamps_tell_is_said(tmp_path):
    found = lines(row("a", 300, timestamp=0), row("a", 150, timestamp=700))
    workload = open_workload(write(tmp_path, found))
    assert [wait for *_, wait in shown(workload)] == [None, 700]
    assert any(note.startswith("waits that hold the seconds of the request before") for note in workload.about.notes)


def test_llmservingsim_counts_nanoseconds_and_shares_by_token_ids(tmp_path):
    workload = open_workload(write(tmp_path, LLMSERVINGSIM))
    assert shown(workload) == [
        ("1", 46.926808, 40, 3, None),
        ("2/1", 347.938951, 33, 7, None),
        ("2/2", 349.438951, 9, 2, 1.5),
    ]
    first, second, _ = [one for arrival in workload for one, _ in requests_of(arrival)]
    assert first.blocks == second.blocks
    assert len(first.blocks) == 2
    cut = LLMSERVINGSIM.replace("0, 1, 2, ", "0, 2, ", 1)
    workload = open_workload(write(tmp_path, cut, "cut"))
    assert next(iter(workload)).blocks == ()
    assert any(note.startswith("prompts whose input_tok_ids are not as many") for note in workload.about.notes)


def test_splitwise_counts_seconds(tmp_path):
    assert shown(open_workload(write(tmp_path, SPLITWISE))) == [("2", 0, 2162, 5, None), ("3", 360, 2399, 6, None)]


def test_a_benchmarks_details_come_by_their_starts(tmp_path):
    assert shown(open_workload(write(tmp_path, DETAILS))) == [
        ("2", 0, 12, 100, None),
        ("3", pytest.approx(150), 14, 151, None),
        ("1", pytest.approx(200), 10, 50, None),
    ]


BAD = {
    "bailian blocks": (
        lines(bailian_row(1, -1, 0, 40, [1, 2])),
        "hash_ids: must be one for each 16 tokens of input_length 40",
    ),
    "bailian key": (lines({**bailian_row(1, -1, 0, 16, [1]), "mood": 1}), "mood: must be one of chat_id, "),
    "bailian zero": (lines(bailian_row(1, -1, 0, 0, [])), "input_length: must be >= 1"),
    "text": (lines(row("a", 5) | {"text_input": "Hello"}), "text_input: must be left out"),
    "another text": (
        lines(row("a", 600, hash_ids=[1, 2]), row("a", 600, hash_ids=[3, 4])),
        "line 2: hash_ids: must begin with 1 as the session's first row does: it is the whole prompt, got 3",
    ),
    "both readings": (
        lines(row("a", 600, hash_ids=[1, 2]), row("a", 600)),
        "line 2: hash_ids: must begin with 1 as the session's first row does",
    ),
    "added with ids": (
        lines(row("a", 600), row("a", 600, hash_ids=[1, 2])),
        "line 2: hash_ids: must be left out as in",
    ),
    "no start": (
        lines(row("a", 5, timestamp=0), row("b", 5)),
        "line 2: timestamp: must be there in the first row of each",
    ),
    "one start": (
        lines(row("a", 5), row("b", 5, timestamp=3)),
        "line 2: timestamp: must be left out in the first row of",
    ),
    "back": (
        lines(row("a", 5, timestamp=9), row("a", 5, timestamp=3)),
        "line 2: timestamp: must have a delay, or a timest",
    ),
    "sessions go back": (
        lines(row("a", 5, timestamp=9), row("b", 5, timestamp=3)),
        "line 2: arrival: must not go back",
    ),
    "delay": (lines(row("a", 5), row("a", 5, delay=-3)), "line 2: delay: must be a time in [0, "),
    "long": (
        lines(row("a", 2**22), row("a", 2**22)),
        "line 2: input_length: must leave the session at most 8,388,608 tokens",
    ),
    "llm key": (LLMSERVINGSIM.replace("output_toks", "output_tokens", 1), "output_tokens: must be one of input_toks"),
    "llm calls": (
        LLMSERVINGSIM.replace('"tool_duration_ns": 1500000', '"tool_duration_ns": -1'),
        "sub_requests[0].tool_d",
    ),
    "llm token": (LLMSERVINGSIM.replace("[0, 1, 2", '["0", 1, 2', 1), "input_tok_ids[0]: must be a whole number"),
    "batch": (SPLITWISE.replace(",1,2399", ",2,2399"), "line 3: batch_size: must be 1: a row is one request, got '2'"),
    "no starts": (
        DETAILS.replace("start_times", "starts"),
        "start_times: must be there: vllm bench serve writes it with --save-result --save-detailed since January 2026",
    ),
    "no details": (
        '{"completed": 3, "total_input_tokens": 30}',
        "input_lens: must be there: vllm bench serve writes it with",
    ),
    "short": (
        DETAILS.replace("50, 100, 151", "50, 100"),
        "output_lens: must hold one entry for each of the 3 requests",
    ),
    "two results": (DETAILS + DETAILS, "line 2: file: must hold one result"),
    "failed": (DETAILS.replace("50, 100", "50, 0"), "output_lens[1]: must be >= 1 (with `zero_tokens`"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_breach_names_line_field_rule_and_value(tmp_path, name):
    text, told = BAD[name]
    with pytest.raises(TraceFormatError, match=re.escape(told)) as error:
        list(open_workload(write(tmp_path, text)))
    assert "\n" not in str(error.value)
