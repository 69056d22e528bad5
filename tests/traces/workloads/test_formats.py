"""Every format, read exactly; every breach is one line with file, line, field, rule and value."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.traces import TraceFormatError
from paceline.traces.workloads import lines_of_workload, open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.summary import summary_of

from .files import (
    AGENTS,
    AZURE,
    BAILIAN,
    BURSTGPT,
    DETAILS,
    LLMSERVINGSIM,
    MOONCAKE,
    MOONCAKE_SESSIONS,
    OWN,
    SOUND,
    SPLITWISE,
    VIDUR,
    all_of,
    bailian_row,
    compact,
    lines,
    session,
    turn,
    write,
)

S = 10**12


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_format_is_told_by_its_content(tmp_path, name, zipped):
    workload = open_workload(write(tmp_path, SOUND[name], zipped=zipped))
    assert workload.about.format == name
    first, second = ([one._replace(turns=None) for one in all_of(workload)] for _ in range(2))
    assert first
    assert first == second


@pytest.mark.parametrize("name", ["azure", "vidur", "burstgpt"])
def test_tables_may_have_other_line_ends_a_mark_and_other_orders(tmp_path, name):
    plain = list(open_workload(write(tmp_path, SOUND[name])))
    rows = [line.split(",") for line in SOUND[name].splitlines()]
    text = "\ufeff" + "".join(",".join(reversed(row)) + "\r\n" for row in rows)
    assert list(open_workload(write(tmp_path, text, "other"))) == plain


def test_azure_counts_from_its_first_row(tmp_path):
    found = list(open_workload(write(tmp_path, AZURE)))
    assert [(one.arrives_ps, one.prompt_tokens, one.output_tokens) for one in found] == [
        (0, 4808, 10),
        (52 * 10**9, 3180, 8),
        (52 * 10**9, 110, 27),
    ]
    assert [one.request_id for one in found] == ["2", "3", "4"]


def test_decimals_are_read_exactly_and_rounded_once(tmp_path):
    assert [one.arrives_ps for one in open_workload(write(tmp_path, VIDUR))] == [0, 5_892_655_000_000, 95 * S]
    assert [one.arrives_ps for one in open_workload(write(tmp_path, BURSTGPT))] == [0, 45_500_000_000_000]
    more = OWN.replace('"arrives_s": 2,', '"arrives_s": 3456789.1234567890125,')
    assert [one.arrives_ps for one in open_workload(write(tmp_path, more))] == [10**11, 3456789123456789013]


def test_mooncake_has_milliseconds_and_blocks_of_512(tmp_path):
    workload = open_workload(write(tmp_path, MOONCAKE))
    assert workload.about.unit_tokens == 512
    assert [(one.arrives_ps, one.blocks) for one in workload] == [
        (0, (0, 1, 2)),
        (27_482 * 10**9, (0,)),
        (27_482 * 10**9, (0, 1, 7)),
    ]


def test_our_own_lines(tmp_path):
    workload = open_workload(write(tmp_path, OWN))
    assert (workload.about.name, workload.about.unit_tokens) == ("mine", 16)
    one, two, three = all_of(workload)
    assert (one.request_id, one.tag, one.slo, one.blocks, one.turns) == ("2", "math", "fast", (5, 6), None)
    assert (two.request_id, two.arrives_ps) == ("b", 2 * S)
    assert (three.request_id, three.arrives_ps, three.blocks) == ("b/1", int(5.5 * S), (5, 7))


def test_a_first_line_of_our_own_may_leave_out_the_name(tmp_path):
    path = write(tmp_path, OWN.replace('"workload": "mine", ', ""))
    workload = open_workload(path)
    assert (workload.about.name, workload.about.unit_tokens) == (path.stem, 16)
    assert [one.blocks for one in all_of(workload)] == [(5, 6), (), (5, 7)]


@pytest.mark.parametrize("name", SOUND)
def test_what_is_written_is_read_again(tmp_path, name):
    workload = open_workload(write(tmp_path, SOUND[name]))
    if name == "mooncake-sessions":  # a text that answers are part of
        with pytest.raises(ArgumentError, match="lines must be of sessions that are lines of turns"):
            list(lines_of_workload(workload))
        return
    again = open_workload(write(tmp_path, "\n".join(lines_of_workload(workload)), "again"))
    told = ["request_id", "arrives_ps", "prompt_tokens", "output_tokens", "tag", "blocks", "slo"]
    assert [[getattr(one, key) for key in told] for one in all_of(again)] == [
        [getattr(one, key) for key in told] for one in all_of(workload)
    ]


@st.composite
def own_rows(draw):
    """Rows of our own format, some with turns, in order of time; blocks as prefixes of a few texts."""
    unit, at, rows = 16, 0, []

    def lengths():
        prompt = draw(st.integers(1, 80))
        text = draw(st.sampled_from(["", "a", "b"]))
        blocks = [ord(text) * 100 + place for place in range(-(-prompt // unit))] if text else []
        return {"prompt_tokens": prompt, "output_tokens": draw(st.integers(1, 9)), "blocks": blocks}

    for number in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 10**13))
        turns = [{"wait_s": draw(st.integers(0, 999)) / 1000, **lengths()} for _ in range(draw(st.integers(0, 3)))]
        more = {"tag": draw(st.sampled_from(["", "math", "é"])), "request_id": f"r{number}", "turns": turns}
        rows.append(f'{{"arrives_s": {at // S}.{at % S:012d}, {json.dumps(lengths() | more)[1:]}')
    return "\n".join([json.dumps({"workload": "any", "unit_tokens": unit}), *rows])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(own_rows(), st.floats(0, 1e6))
def test_any_workload_comes_back_as_it_was_written(tmp_path, text, served_s):
    """Turn by turn, however long the requests take."""
    workload = open_workload(write(tmp_path, text))
    again = open_workload(write(tmp_path, "\n".join(lines_of_workload(workload)), "again"))
    assert again.about.unit_tokens == workload.about.unit_tokens
    for one, other in zip(workload, again, strict=True):
        pair = one, other
        while pair[0] is not None:
            assert pair[0][:6] + pair[0][7:] == pair[1][:6] + pair[1][7:]
            ended_ps = pair[0].arrives_ps + int(served_s * S)
            pair = tuple(next(iter(each.turns.after(ended_ps)), None) if each.turns else None for each in pair)
        assert pair == (None, None)


# -- sessions of agents


def of_sessions(tmp_path, *sessions):
    return all_of(open_workload(write(tmp_path, lines(*sessions))))


def test_a_session_waits_as_long_as_its_tools_and_users(tmp_path):
    found = of_sessions(tmp_path, *map(json.loads, AGENTS.splitlines()))
    assert [one.request_id for one in found] == ["one/1", "one/2", "one/3", "one/4", "one/5", "two/1"]
    ends = [one.arrives_ps + 2 * S for one in found]
    waits = [(one.arrives_ps - end) / S for one, end in zip(found[1:5], ends, strict=False)]
    # Given; 21.5, where the sub-agent begins, less the end at 21; given; and 45 less the sub-agent's end at 31.5.
    assert waits == [12.0, 0.5, 2.0, 13.5]


def subagent(t, *requests, duration_ms=None):
    found = {"t": t, "type": "subagent", "agent_id": "a", "requests": list(requests)}
    return found if duration_ms is None else found | {"duration_ms": duration_ms}


def one_request(t, api):
    return compact(t, 64, 0, [[1, 1]], api=api)


def test_sub_agents_run_side_by_side_and_are_joined(tmp_path):
    workload = open_workload(
        write(
            tmp_path,
            lines(
                session(
                    "s",
                    one_request(0.0, 5.0),
                    subagent(16.0, one_request(0.0, 4.0), one_request(6.0, 3.0), duration_ms=10_000),
                    subagent(29.0, one_request(1.0, 20.0), duration_ms=23_000),
                    subagent(29.0, one_request(0.5, 99.0)),
                    compact(30.0, 64, 1, [], api=1.0, think=24.0),
                )
            ),
        )
    )
    (first,) = workload
    begun = first.turns.after(100 * S)
    # They began 1, 2 and 24.5 seconds after the end of what launched them.
    assert [(one.request_id, one.arrives_ps / S) for one in begun] == [("s/2", 101), ("s/4", 102), ("s/5", 124.5)]
    (again,) = begun[0].turns.after(110 * S)
    assert (again.request_id, again.arrives_ps / S) == ("s/3", 112)  # 6 less the end at 4
    assert begun[2].turns is None  # nobody waits for the last, of which the file does not say how long it took
    assert not again.turns.after(120 * S)
    (joined,) = begun[1].turns.after(130 * S)
    assert (joined.request_id, joined.arrives_ps / S) == ("s/6", 133)  # 30 less the end at 6 + 21
    assert tuple(block % 2**24 for block in joined.blocks) == (1,)
    assert any("sub-agents that nobody waits for" in note for note in workload.about.notes)


def test_waits_below_zero_are_told(tmp_path):
    rows = session("s", one_request(0.0, 5.0), one_request(3.0, 1.0), subagent(3.5, one_request(0.0, 1.0)))
    workload = open_workload(write(tmp_path, lines(rows)))
    first, second, third = all_of(workload)
    assert first.arrives_ps == 0
    assert third.turns is None
    assert second.request_id == "s/2"
    told = [note for note in workload.about.notes if note.startswith("requests that began before what they wait for")]
    assert [note.rpartition(": ")[2] for note in told] == ["2"]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([subagent(9.0, one_request(0.0, 1.0), duration_ms=8_000)], "requests[0].type: must follow a request of some"),
        ([one_request(0.0, 1.0), subagent(9.0, one_request(0.0, 1.0), duration_ms=9_001)],
         "requests[1].duration_ms: must be at most the 9000 ms of the session until it ended, got 9001"),
    ],
)  # fmt: skip
def test_a_sub_agent_that_nobody_can_have_launched_is_refused(tmp_path, requests, told):
    with pytest.raises(TraceFormatError, match=re.escape(told)):
        list(open_workload(write(tmp_path, lines(session("s", *requests)))))


def test_blocks_go_on_from_the_request_of_the_same_line(tmp_path):
    found = of_sessions(tmp_path, *map(json.loads, AGENTS.splitlines()))
    local = [tuple(block % 2**24 for block in one.blocks) for one in found]
    assert local == [(1, 2), (1, 2, 3), (9,), (9, 10), (1, 2, 3, 4), (1,)]
    assert not set(found[-1].blocks) & {block for one in found[:-1] for block in one.blocks}


def test_global_ids_are_shared(tmp_path):
    found = of_sessions(tmp_path, *(session(name, compact(0, 70, 0, [[1, 1]]), scope="global") for name in "ab"))
    assert [one.blocks for one in found] == [(1,), (1,)]


def test_raw_and_compact_say_the_same(tmp_path):
    raw = session(
        "x",
        turn(0.0, 200, think=0.0, api=1.0, hash_ids=[1, 2, 3], input_types=["text"], output_types=["text"]),
        turn(4.0, 210, think=3.0, api=1.0, hash_ids=[1, 2, 8]),
        turn(9.0, 70, think=3.0, api=1.0, hash_ids=[1]),
    )
    short = session(
        "x",
        compact(0.0, 200, 0, [[1, 3]], think=0.0, api=1.0),
        compact(4.0, 210, 2, [[8, 8]], think=3.0, api=1.0),
        compact(9.0, 70, 1, [], think=3.0, api=1.0),
    )
    told = [[one._replace(turns=None) for one in of_sessions(tmp_path, found)] for found in (raw, short)]
    assert told[0] == told[1]


def test_a_folder_of_sessions_is_one_workload(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in "ba":
        write(folder, lines(session(name, compact(0, 70, 0, [[1, 1]]))), f"{name}.json")
    found = list(open_workload(folder))
    assert [one.request_id for one in found] == ["a/1", "b/1"]
    assert len({one.blocks for one in found}) == 2
    with pytest.raises(TraceFormatError, match="must be one file of format azure, got 'a folder'"):
        open_workload(write_folder(tmp_path))


def write_folder(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    write(folder, AZURE)
    return folder


# -- breaches


def with_field(text, line, change):
    """The text with the object of a line changed."""
    rows = text.splitlines()
    found = json.loads(rows[line - 1])
    change(found)
    rows[line - 1] = json.dumps(found)
    return "\n".join(rows)


def setting(key, value):
    return lambda found: found.update({key: value})


BAD = [
    (AZURE.replace("00:00:00.0319600,110", "00:00:00.0219600,110"), "line 4: arrival: must not go back in time, after"),
    (AZURE.replace("2023-11-17 00:00:00.0319600,110", "2023-11-15 00:00:00.0319600,110"),
     "line 4: TIMESTAMP: must not be before the first row's, got '2023-11-15 00:00:00.0319600'"),
    (AZURE.replace("2023-11-16", "2023-02-30"), "line 2: TIMESTAMP: must be a time, YYYY"),
    (AZURE.replace("23:59:59", "24:00:00"), "line 2: TIMESTAMP: must be a time, YYYY"),
    (AZURE.replace("4808", "0"), "line 2: ContextTokens: must be >= 1 (with `zero_tokens`"),
    (VIDUR.replace(",44", ",0"), "line 2: num_decode_tokens: must be >= 1 (with `zero_tokens`"),
    (AZURE.replace(",8\n", ",-8\n"), "line 3: GeneratedTokens: must be a whole number in [1, 2147483647], got '-8'"),
    (VIDUR.replace("374", "374.5"), "num_prefill_tokens: must be a whole number in [1, 2147483647]"),
    (VIDUR.replace("374", "2147483648"), "num_prefill_tokens: must be a whole number"),
    (AZURE.replace("Tokens\n", "Tokens,Mood\n"), "line 1: columns: must be of TIMESTAMP, "),
    (AZURE.replace("TIMESTAMP,", "", 1), "line 1: columns: must have TIMESTAMP, got 'ContextTokens, GeneratedTokens'"),
    (AZURE.replace("TIMESTAMP", "TIMESTAMP,TIMESTAMP"), "columns: must be there once each, got"),
    (VIDUR.replace("0.0,374,44", "0.0,374"), "line 2: row: must have 3 cells as the head has, got 2"),
    (VIDUR.replace("0.0", '"0.0'), "row: must be cells with commas between"),
    (VIDUR.replace("0.0,", "-1.0,"), "line 2: arrived_at: must be a time in [0, 1,000,000,000] s"),
    (VIDUR.replace("0.0,", "nan,"), "line 2: arrived_at: must be a time, seconds, got 'nan'"),
    (VIDUR.replace("0.0,", "1e999999999,"), "line 2: arrived_at: must be a time in [0, 1,000,000"),
    (BURSTGPT.replace(",490,", ",491,"), "line 2: Total tokens: must be the sum of Request tokens and Response tokens"),
    (MOONCAKE.replace("27482", "9", 2).replace("9,", "27482,", 1), "line 3: arrival: must not go back"),
    (with_field(MOONCAKE, 1, setting("hash_ids", [0, 1])), "line 1: hash_ids: must be one for each 512 tokens of inpu"),
    (with_field(MOONCAKE, 1, setting("hash_ids", [0, 1, 1])), "line 1: hash_ids: must not hold an id twice: it stands"),
    (with_field(MOONCAKE, 1, setting("hash_ids", [0, True, 2])), "hash_ids[1]: must be a whole number"),
    (with_field(MOONCAKE, 2, setting("mood", 1)), "line 2: mood: must be one of timestamp, "),
    (with_field(MOONCAKE, 2, lambda one: one.pop("timestamp")), "line 2: timestamp: must be there"),
    (with_field(MOONCAKE, 2, setting("timestamp", -1)), "line 2: timestamp: must be a time in [0, "),
    (with_field(MOONCAKE, 2, setting("input_length", "512")), "input_length: must be a whole number in [1"),
    (f"{MOONCAKE}[1]\n", "line 4: JSON: must be one JSON object a line, got 'a list'"),
    (MOONCAKE[:-30], "line 3: JSON: must be one JSON object a line, got "),
    (MOONCAKE.replace('{"timestamp": 27482', '{"timestamp": 1, "timestamp": 27482'), "key 'timestamp' twice"),
    (with_field(OWN, 2, setting("mood", 1)), "line 2: mood: must be one of request_id, "),
    (OWN.replace('"wait_s": 1.5', '"wait_s": -1.5'), "line 3: turns[0].wait_s: must be a time in [0, 4,611,686] s, go"),
    (with_field(OWN, 2, setting("blocks", [5])), None),
    (with_field(OWN, 2, setting("blocks", [5, 6, 7])), "line 2: blocks: must be one for each 16 tokens of prompt_toke"),
    (OWN.split("\n", 1)[1], "line 1: blocks: must be left out where the first line has no unit"),
    (with_field(OWN, 2, setting("tag", "a\nb")), "line 2: tag: must be printable text"),
    (OWN.splitlines()[0], "file: must hold requests, got 'none, 0 dropped'"),
    (AZURE.splitlines()[0], "file: must hold requests, got 'none, 0 dropped'"),
    ("", "file: must hold a workload, got 'nothing'"),
    ("a,b\n1,2\n", "line 1: format: must be told by keys or columns (all are in docs/workloads.md), got "),
    ('{"a": 1}', "line 1: format: must be told by keys or columns (all are in docs/workloads.md), got "),
    (AZURE.encode().replace(b"110", b"1\xff0"), "line 4: row: must be UTF-8, got 'byte 0xff'"),
    (b"\xfe" + AZURE.encode(), "line 1: row: must be UTF-8, got 'byte 0xfe'"),
    (MOONCAKE.encode().replace(b"1500", b"15\xff0"), "line 3: JSON: must be one JSON object a line"),
]  # fmt: skip


BAD_SESSIONS = [
    (session("x", compact(5, 64, 0, [[1, 1]]), compact(4, 64, 1, [])), "requests[1].t: must not be before"),
    (session("x", compact(0, 64, 0, [[1, 1]]), compact(4, 128, 2, [])), "requests[1].reuse_prev: must be at most the "),
    (session("x", compact(0, 640, 0, [[1, 9]])), "requests[0].n_blocks: must be one for each 64 tokens of in, 640, wh"),
    (session("x", compact(0, 64, 0, [[1, 1]]) | {"n_blocks": 2}), "requests[0].n_blocks: must be those of reuse_prev "),
    (session("x", compact(0, 64, 0, [[1, 1]]), compact(4, 192, 1, [[1, 2]])), "requests[1].new_runs: must not hold an"),
    (session("x", turn(0, 64, reuse_prev=0, new_runs=[[2, 1]], n_blocks=0)), "requests[0].new_runs[0]: must be [first"),
    (session("x", compact(0, 64, 0, [[2**24, 2**24]])), "ids of a local scope must be below 16,777,"),
    (session("x", compact(0, 64, 0, [[1, 1]]), scope="odd"), "hash_id_scope: must be local or global"),
    (session("x", compact(0, 64, 0, [[1, 1]]) | {"type": "z"}), "requests[0].type: must be one of n, s, sub"),
    (session("x", compact("0", 64, 0, [[1, 1]])), "requests[0].t: must be a time in [0, 4,611,686] s"),
    (session("x", compact(0, 64, 0, [[1, 1]], mood=1)), "requests[0].mood: must be one of t, type"),
    (session("x", compact(0, 64, 0, [[1, 1]], hash_ids=[2])), "requests[0].reuse_prev: must be one of t, type, in, ou"),
    (session("x", compact(0, 64, 0, [[1, 1]], out=0)), "requests[0].out: must be >= 1 (with `zero_tokens`"),
    (session("x", 5), "requests[0]: must be an object, got 'a number'"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "told"), BAD_SESSIONS)
def test_a_breach_of_a_session_is_one_line(tmp_path, found, told):
    path = write(tmp_path, lines(found))
    with pytest.raises(TraceFormatError) as error:
        all_of(open_workload(path))
    assert f"load: line 1: {'' if told.startswith('ids') else told}" in str(error.value)
    assert told in str(error.value)


def test_gzip_that_is_none_or_cut(tmp_path):
    path = write(tmp_path, AZURE, zipped=True)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(TraceFormatError, match=r"load\.gz: file: must be a readable file, got"):
        list(open_workload(path))
    path.write_bytes(AZURE.encode())
    with pytest.raises(TraceFormatError, match=r"load\.gz: file: must be a readable file, got .Not a gzipped file"):
        open_workload(path)


# -- formats of others


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


BAD += [
    (lines(bailian_row(1, -1, 0, 40, [1, 2])), "hash_ids: must be one for each 16 tokens of input_length 40"),
    (lines({**bailian_row(1, -1, 0, 16, [1]), "mood": 1}), "mood: must be one of chat_id, "),
    (lines(bailian_row(1, -1, 0, 0, [])), "input_length: must be >= 1"),
    (lines(row("a", 5) | {"text_input": "Hello"}), "text_input: must be left out"),
    (lines(row("a", 600, hash_ids=[1, 2]), row("a", 600, hash_ids=[3, 4])), "line 2: hash_ids: must begin with 1 as t"),
    (lines(row("a", 600, hash_ids=[1, 2]), row("a", 600)), "line 2: hash_ids: must begin with 1 as the session's firs"),
    (lines(row("a", 600), row("a", 600, hash_ids=[1, 2])), "line 2: hash_ids: must be left out as in"),
    (lines(row("a", 5, timestamp=0), row("b", 5)), "line 2: timestamp: must be there in the first row of each"),
    (lines(row("a", 5), row("b", 5, timestamp=3)), "line 2: timestamp: must be left out in the first row of"),
    (lines(row("a", 5, timestamp=9), row("a", 5, timestamp=3)), "line 2: timestamp: must have a delay, or a timest"),
    (lines(row("a", 5, timestamp=9), row("b", 5, timestamp=3)), "line 2: arrival: must not go back"),
    (lines(row("a", 5), row("a", 5, delay=-3)), "line 2: delay: must be a time in [0, "),
    (lines(row("a", 2**22), row("a", 2**22)), "line 2: input_length: must leave the session at most 8,388,608 tokens"),
    (LLMSERVINGSIM.replace("output_toks", "output_tokens", 1), "output_tokens: must be one of input_toks"),
    (LLMSERVINGSIM.replace('"tool_duration_ns": 1500000', '"tool_duration_ns": -1'), "sub_requests[0].tool_d"),
    (LLMSERVINGSIM.replace("[0, 1, 2", '["0", 1, 2', 1), "input_tok_ids[0]: must be a whole number"),
    (SPLITWISE.replace(",1,2399", ",2,2399"), "line 3: batch_size: must be 1: a row is one request, got '2'"),
    (DETAILS.replace("start_times", "starts"), "start_times: must be there: vllm bench serve writes it with --save-re"),
    ('{"completed": 3, "total_input_tokens": 30}', "input_lens: must be there: vllm bench serve writes it with"),
    (DETAILS.replace("50, 100, 151", "50, 100"), "output_lens: must hold one entry for each of the 3 requests"),
    (DETAILS + DETAILS, "line 2: file: must hold one result"),
    (DETAILS.replace("50, 100", "50, 0"), "output_lens[1]: must be >= 1 (with `zero_tokens`"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD)
def test_a_breach_is_one_line(tmp_path, text, told):
    path = write(tmp_path, text)
    if told is None:
        assert all_of(open_workload(path))
        return
    with pytest.raises(TraceFormatError) as error:
        all_of(open_workload(path))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


# -- sessions as graphs in our own lines: what requests read and write, and what is refused


FIRST = {"request_id": "a", "arrives_s": 1, "prompt_tokens": 40, "output_tokens": 32}


def one(after, prompt, output=8, **more):
    return {"after": after, "prompt_tokens": prompt, "output_tokens": output, **more}


def session_of(tmp_path, *graph, first=None, unit=8, **options):
    head = {"workload": "w", "unit_tokens": unit}
    path = write(tmp_path, lines(head, FIRST | (first or {}) | {"graph": list(graph)}))
    (arrival,) = open_workload(path, **options)
    return {request.request_id: (request, wait_ps) for request, wait_ps in requests_of(arrival)}


def test_requests_go_on_from_what_others_wrote(tmp_path):
    found = session_of(
        tmp_path,
        one(["a@12"], 52, request_id="b", continues="a@12"),
        one(["a", "b"], 80, continues="a", wait_s=1.5),
        one(["a/2"], 20),
    )
    a, b, c, d = (found[name][0] for name in ("a", "b", "a/2", "a/3"))
    assert a.depths == (12,)
    assert len(a.blocks) == 5
    assert b.blocks == (a.blocks + a.answer)[:6]
    assert c.blocks[:9] == a.blocks + a.answer
    assert not set(c.blocks[9:]) & set(a.blocks + a.answer + b.answer)
    assert not set(d.blocks) & set(a.blocks + a.answer)
    assert [wait_ps for _, wait_ps in found.values()] == [None, 0, 15 * 10**11, 0]


def test_a_shared_context_is_one_text_that_each_writes_a_place_of(tmp_path):
    """The first writer's text follows what it has read; the second's does not, so that others read it again."""
    found = session_of(
        tmp_path,
        one(["a@0"], 40, 16, request_id="w1", at=40),
        one(["a@0"], 40, 16, request_id="w2", at=56),
        one(["w1", "w2"], 72, request_id="r1", at=72),
        one(["w1", "w2"], 72, request_id="r2", at=80),
    )
    w1, w2, r1, r2 = (found[name][0] for name in ("w1", "w2", "r1", "r2"))
    assert w1.blocks == w2.blocks == found["a"][0].blocks
    assert r1.blocks == r2.blocks
    assert r1.blocks[:7] == w1.blocks + w1.answer
    assert w2.answer == r2.answer == ()
    assert len(r1.answer) == 1


def test_blocks_of_files_stay_what_they_are(tmp_path):
    found = session_of(
        tmp_path, one(["a"], 24, blocks=[1, 2, 9]), one(["a"], 72, continues="a"), first={"blocks": [1, 2, 3, 4, 5]}
    )
    assert found["a"][0].blocks == (1, 2, 3, 4, 5)
    assert found["a/1"][0].blocks == (1, 2, 9)
    assert found["a/2"][0].blocks[:5] == (1, 2, 3, 4, 5)


def test_graphs_need_no_texts(tmp_path):
    head = {"workload": "w"}
    path = write(tmp_path, lines(head, FIRST | {"graph": [one(["a@3", "a@3"], 5), one(["a/1", "a"], 5)]}))
    (arrival,) = open_workload(path)
    assert [request.blocks for request, _ in requests_of(arrival)] == [(), (), ()]


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        ([one(["z"], 5)], "graph[0].after: must be a request of the session, or that, @ and tokens of its answer"),
        ([one([], 5)], "graph[0].after: must wait for another one, or never comes, got 0"),
        ([one(["a@33"], 5)], "graph[0].after: must wait for at most the 32 tokens that a answers, got 33"),
        ([one(["a", "c"], 5, request_id="b"), one(["b"], 5, request_id="c")], "by way of others, got 'b -> c -> b'"),
        ([one(["a"], 5, request_id="a")], "graph[0].request_id: must be unique in the workload, got 'a'"),
        ([one(["a@3"], 60, continues="a@4")], "graph[0].continues: must be written by what it waits for, got 'a@4'"),
        ([one(["a@3"], 80, continues="a")], "graph[0].continues: must be written by what it waits for, got 'a'"),
        ([one(["a"], 80, continues="a@40")], "graph[0].continues: must be within the 32 tokens that a answers, got"),
        ([one(["a"], 5, request_id="")], "graph[0].request_id: must not be empty, got ''"),
        ([one(["a"], 71, continues="a")], "graph[0].prompt_tokens: must be at least the 72 of what it continues"),
        ([one(["a"], 72, continues="a", at=72)], "graph[0].at: must be left out beside continues, got 72"),
        ([one(["a"], 40, 16, at=40, request_id="b"), one(["a"], 40, at=55)],
         "graph[1].at: must not be a place where b writes, which ends at 56, got 55"),
        ([one(["a"], 8, at=20)], "graph[0].at: must not be a place where the prompt of a writes, which ends at 40"),
        ([one(["a"], 40, at=39)], "graph[0].at: must be behind the 40 tokens that it reads, got 39"),
        ([one(["a"], 40, at=40, request_id="b"), one(["a"], 48, at=48)],
         "graph[1].prompt_tokens: must be at most the 40 tokens of the context that those have written"),
        ([one(["a"], 5, 0)], "graph[0].output_tokens: must be >= 1"),
        ([one("a", 5)], "graph[0].after: must be a list"),
        ([5], "graph[0]: must be an object"),
        ([one(["a"], 5, turns=[])], "graph[0].turns: must be one of after"),
    ],
)  # fmt: skip
def test_a_session_that_cannot_run_is_refused(tmp_path, graph, told):
    with pytest.raises(TraceFormatError) as error:
        session_of(tmp_path, *graph)
    assert "line 2" in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"graph": {}}, "graph: must be a list"),
        ({"graph": [], "turns": []}, "turns: must be left out beside graph"),
        ({"at": 3}, "at: must be left out where there is no graph"),
        ({"request_id": ""}, "request_id: must not be empty"),
        ({"turns": [{"wait_s": 1, "prompt_tokens": 5, "output_tokens": 5, "request_id": ""}]},
         r"turns\[0\].request_id:"),
        ({"graph": [one(["a"], 72, continues="a")]}, "must be left out where the first line has no unit_tokens"),
    ],
)  # fmt: skip
def test_lines_that_say_two_things_are_refused(tmp_path, row, told):
    path = write(tmp_path, json.dumps(FIRST | row))
    with pytest.raises(TraceFormatError, match=told):
        list(open_workload(path))


def test_no_request_of_a_graph_is_dropped(tmp_path):
    with pytest.raises(TraceFormatError, match="no request of a graph is dropped"):
        session_of(tmp_path, one(["a"], 5, 0), zero_tokens="drop")
