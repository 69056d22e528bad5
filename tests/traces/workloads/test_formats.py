"""Every format, read exactly; every breach is one line with file, line, field, rule and value."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.traces import TraceFormatError
from paceline.traces.workloads import lines_of_workload, open_workload

from .files import AGENTS, AZURE, BURSTGPT, MOONCAKE, OWN, SOUND, VIDUR, all_of, compact, lines, session, turn, write

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
        (
            [one_request(0.0, 1.0), subagent(9.0, one_request(0.0, 1.0), duration_ms=9_001)],
            "requests[1].duration_ms: must be at most the 9000 ms of the session until it ended, got 9001",
        ),
    ],
)
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


BAD = {
    "azure goes back": (
        AZURE.replace("00:00:00.0319600,110", "00:00:00.0219600,110"),
        "load: line 4: arrival: must not go back in time, after one at 0.052 s, got '0.042 s'",
    ),
    "azure goes before its first row": (
        AZURE.replace("2023-11-17 00:00:00.0319600,110", "2023-11-15 00:00:00.0319600,110"),
        "load: line 4: TIMESTAMP: must not be before the first row's, got '2023-11-15 00:00:00.0319600'",
    ),
    "no day": (AZURE.replace("2023-11-16", "2023-02-30"), "load: line 2: TIMESTAMP: must be a time, YYYY"),
    "no hour": (AZURE.replace("23:59:59", "24:00:00"), "load: line 2: TIMESTAMP: must be a time, YYYY"),
    "zero prompt": (AZURE.replace("4808", "0"), "load: line 2: ContextTokens: must be >= 1 (with `zero_tokens`"),
    "zero output": (VIDUR.replace(",44", ",0"), "load: line 2: num_decode_tokens: must be >= 1 (with `zero_tokens`"),
    "negative": (
        AZURE.replace(",8\n", ",-8\n"),
        "load: line 3: GeneratedTokens: must be a whole number in [1, 2147483647], got '-8'",
    ),
    "fraction": (VIDUR.replace("374", "374.5"), "num_prefill_tokens: must be a whole number in [1, 2147483647]"),
    "too large": (VIDUR.replace("374", "2147483648"), "num_prefill_tokens: must be a whole number"),
    "unknown column": (AZURE.replace("Tokens\n", "Tokens,Mood\n"), "load: line 1: columns: must be of TIMESTAMP, "),
    "missing column": (
        AZURE.replace("TIMESTAMP,", "", 1),
        "load: line 1: columns: must have TIMESTAMP, got 'ContextTokens, GeneratedTokens'",
    ),
    "column twice": (AZURE.replace("TIMESTAMP", "TIMESTAMP,TIMESTAMP"), "columns: must be there once each, got"),
    "short row": (
        VIDUR.replace("0.0,374,44", "0.0,374"),
        "load: line 2: row: must have 3 cells as the head has, got 2",
    ),
    "a quote": (VIDUR.replace("0.0", '"0.0'), "row: must be cells with commas between"),
    "vidur negative time": (
        VIDUR.replace("0.0,", "-1.0,"),
        "line 2: arrived_at: must be a time in [0, 1,000,000,000] s",
    ),
    "vidur no time": (VIDUR.replace("0.0,", "nan,"), "line 2: arrived_at: must be a time, seconds, got 'nan'"),
    "vidur endless": (VIDUR.replace("0.0,", "1e999999999,"), "line 2: arrived_at: must be a time in [0, 1,000,000"),
    "totals": (
        BURSTGPT.replace(",490,", ",491,"),
        "load: line 2: Total tokens: must be the sum of Request tokens and Response tokens, 490, got '491'",
    ),
    "mooncake goes back": (
        MOONCAKE.replace("27482", "9", 2).replace("9,", "27482,", 1),
        "line 3: arrival: must not go back",
    ),
    "mooncake too few ids": (
        with_field(MOONCAKE, 1, setting("hash_ids", [0, 1])),
        "load: line 1: hash_ids: must be one for each 512 tokens of input_length 1025 begun, 3, got 2",
    ),
    "mooncake id twice": (
        with_field(MOONCAKE, 1, setting("hash_ids", [0, 1, 1])),
        "load: line 1: hash_ids: must not hold an id twice: it stands for all the text before it, got 1",
    ),
    "mooncake odd id": (
        with_field(MOONCAKE, 1, setting("hash_ids", [0, True, 2])),
        "hash_ids[1]: must be a whole number",
    ),
    "mooncake unknown": (with_field(MOONCAKE, 2, setting("mood", 1)), "load: line 2: mood: must be one of timestamp, "),
    "mooncake missing": (with_field(MOONCAKE, 2, lambda one: one.pop("timestamp")), "line 2: timestamp: must be there"),
    "mooncake negative": (
        with_field(MOONCAKE, 2, setting("timestamp", -1)),
        "line 2: timestamp: must be a time in [0, ",
    ),
    "mooncake text": (
        with_field(MOONCAKE, 2, setting("input_length", "512")),
        "input_length: must be a whole number in [1",
    ),
    "no object": (f"{MOONCAKE}[1]\n", "load: line 4: JSON: must be one JSON object a line, got 'a list'"),
    "cut": (MOONCAKE[:-30], "load: line 3: JSON: must be one JSON object a line, got "),
    "key twice": (
        MOONCAKE.replace('{"timestamp": 27482', '{"timestamp": 1, "timestamp": 27482'),
        "key 'timestamp' twice",
    ),
    "own unknown": (with_field(OWN, 2, setting("mood", 1)), "load: line 2: mood: must be one of request_id, "),
    "own in a turn": (
        OWN.replace('"wait_s": 1.5', '"wait_s": -1.5'),
        "load: line 3: turns[0].wait_s: must be a time in [0, 4,611,686] s, got -1.5",
    ),
    "own blocks": (with_field(OWN, 2, setting("blocks", [5])), None),
    "own too many blocks": (
        with_field(OWN, 2, setting("blocks", [5, 6, 7])),
        "load: line 2: blocks: must be one for each 16 tokens of prompt_tokens 20, whether the last is full or begun",
    ),
    "own blocks without unit": (
        OWN.split("\n", 1)[1],
        "line 1: blocks: must be left out where the first line has no unit",
    ),
    "own tag": (with_field(OWN, 2, setting("tag", "a\nb")), "load: line 2: tag: must be printable text"),
    "only a head": (OWN.splitlines()[0], "load: file: must hold requests, got 'none, 0 dropped'"),
    "only columns": (AZURE.splitlines()[0], "load: file: must hold requests, got 'none, 0 dropped'"),
    "empty": ("", "load: file: must hold a workload, got 'nothing'"),
    "other columns": (
        "a,b\n1,2\n",
        "load: line 1: format: must be told by keys or columns (all are in docs/workloads.md), got ",
    ),
    "other keys": (
        '{"a": 1}',
        "load: line 1: format: must be told by keys or columns (all are in docs/workloads.md), got ",
    ),
    "not UTF-8": (AZURE.encode().replace(b"110", b"1\xff0"), "load: line 4: row: must be UTF-8, got 'byte 0xff'"),
    "head not UTF-8": (b"\xfe" + AZURE.encode(), "load: line 1: row: must be UTF-8, got 'byte 0xfe'"),
    "lines not UTF-8": (MOONCAKE.encode().replace(b"1500", b"15\xff0"), "line 3: JSON: must be one JSON object a line"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_breach_is_one_line(tmp_path, what):
    text, told = BAD[what]
    path = write(tmp_path, text)
    if told is None:
        assert all_of(open_workload(path))
        return
    with pytest.raises(TraceFormatError) as error:
        all_of(open_workload(path))
    assert told in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


BAD_SESSIONS = {
    "goes back": (
        session("x", compact(5, 64, 0, [[1, 1]]), compact(4, 64, 1, [])),
        "requests[1].t: must not be before",
    ),
    "keeps too much": (
        session("x", compact(0, 64, 0, [[1, 1]]), compact(4, 128, 2, [])),
        "requests[1].reuse_prev: must be at most the blocks of the prompt before, 1, got 2",
    ),
    "contradicts its length": (
        session("x", compact(0, 640, 0, [[1, 9]])),
        "requests[0].n_blocks: must be one for each 64 tokens of in, 640, whether the last is full or begun, got 9",
    ),
    "counts wrongly": (
        session("x", compact(0, 64, 0, [[1, 1]]) | {"n_blocks": 2}),
        "requests[0].n_blocks: must be those of reuse_prev and new_runs, 1, got 2",
    ),
    "an id twice": (
        session("x", compact(0, 64, 0, [[1, 1]]), compact(4, 192, 1, [[1, 2]])),
        "requests[1].new_runs: must not hold an id twice: it stands for all the text before it, got 1",
    ),
    "a run backwards": (
        session("x", turn(0, 64, reuse_prev=0, new_runs=[[2, 1]], n_blocks=0)),
        "requests[0].new_runs[0]: must be [first, last]",
    ),
    "a large local id": (
        session("x", compact(0, 64, 0, [[2**24, 2**24]])),
        "ids of a local scope must be below 16,777,",
    ),
    "an odd scope": (session("x", compact(0, 64, 0, [[1, 1]]), scope="odd"), "hash_id_scope: must be local or global"),
    "an odd type": (
        session("x", compact(0, 64, 0, [[1, 1]]) | {"type": "z"}),
        "requests[0].type: must be one of n, s, sub",
    ),
    "no time": (session("x", compact("0", 64, 0, [[1, 1]])), "requests[0].t: must be a time in [0, 4,611,686] s"),
    "an unknown key": (session("x", compact(0, 64, 0, [[1, 1]], mood=1)), "requests[0].mood: must be one of t, type"),
    "blocks in two ways": (
        session("x", compact(0, 64, 0, [[1, 1]], hash_ids=[2])),
        "requests[0].reuse_prev: must be one of t, type, in, out, hash_ids,",
    ),
    "no answer": (
        session("x", compact(0, 64, 0, [[1, 1]], out=0)),
        "requests[0].out: must be >= 1 (with `zero_tokens`",
    ),
    "no request": (session("x", 5), "requests[0]: must be an object, got 'a number'"),
}


@pytest.mark.parametrize("what", BAD_SESSIONS)
def test_a_breach_of_a_session_is_one_line(tmp_path, what):
    found, told = BAD_SESSIONS[what]
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
