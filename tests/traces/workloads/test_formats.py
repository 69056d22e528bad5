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

from ..refused import SHEETS, rows_of, told
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


@pytest.mark.parametrize("row", rows_of(SHEETS[1]))
def test_a_breach_is_one_line_with_line_field_rule_and_value(tmp_path, row):
    assert told(row, tmp_path) == row["told"] != ""
    assert "\n" not in row["told"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (AZURE.encode().replace(b"110", b"1\xff0"), "load: line 4: row: must be UTF-8, got 'byte 0xff'"),
        (b"\xfe" + AZURE.encode(), "load: line 1: row: must be UTF-8, got 'byte 0xfe'"),
        (MOONCAKE.encode().replace(b"1500", b"15\xff0"), "load: line 3: JSON: must be one JSON object a line"),
    ],
)
def test_bytes_that_are_no_text_are_named(tmp_path, content, said):
    with pytest.raises(TraceFormatError, match=re.escape(said)):
        list(open_workload(write(tmp_path, content)))


def test_a_last_block_may_be_full_or_begun(tmp_path):
    assert all_of(open_workload(write(tmp_path, OWN.replace('"blocks": [5, 6]', '"blocks": [5]'))))


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
