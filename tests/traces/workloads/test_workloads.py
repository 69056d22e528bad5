"""Workloads of files: read exactly, changed only as asked, summed up, in memory that follows no file; breaches by line.

What each format means, and what options make of it, is in read.jsonl; what is refused in refused.jsonl.
"""

import json
import re
import tracemalloc
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.traces import TraceFormatError
from paceline.traces.workloads import lines_of_workload, open_workload
from paceline.traces.workloads.arrival import (
    MOST_PS,
    MOST_READ_PS,
    PS_PER_S,
    ps_of_decimal,
    ps_of_moment,
    ps_of_seconds,
    requests_of,
)
from paceline.traces.workloads.sessions import GraphError, Node, SessionGraph, Turn, Waits
from paceline.traces.workloads.summary import summary_of

from ...rows import check_rows
from ..sheets import NOT_OPENED, OPENED, all_of, opened, read_rows, rows_in, told
from .files import AGENTS, AZURE, MOONCAKE, OWN, SOUND, VIDUR, lines, write

S = PS_PER_S
ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_what_is_read_of_a_file(tmp_path):
    def check(row, folder):
        assert opened(row, folder) == row["seen"]

    check_rows(rows_in(OPENED, tmp_path), check)


def test_a_breach_is_one_line_with_line_field_rule_and_value(tmp_path):
    def check(row, folder):
        assert told(row, folder) == row["told"] != ""
        assert "\n" not in row["told"]

    check_rows(rows_in(NOT_OPENED, tmp_path), check)


def bare(requests):
    return [one._replace(turns=None) for one in requests]


def test_a_cell_may_be_longer_than_readers_of_tables_usually_take(tmp_path):
    path = write(tmp_path, f't,p,o,prompt\n1,3,4,"{"x" * 150_000}"\n2,5,6,y\n')
    workload = open_workload(path, columns="arrives_s=t,prompt=p,output=o")
    assert [first.prompt_tokens for first in workload] == [3, 5]


@pytest.mark.parametrize("name", SOUND)
def test_a_workload_is_read_twice_zipped_and_written_and_nothing_is_changed_unless_asked_for(tmp_path, name):
    workload = open_workload(write(tmp_path, SOUND[name]))
    found, summary = bare(all_of(workload)), summary_of(workload)
    assert bare(all_of(workload)) == found
    zipped = open_workload(write(tmp_path, SOUND[name], zipped=True))
    assert (zipped.about.format, bare(all_of(zipped))) == (name, found)
    wide = open_workload(tmp_path / "load", limit=100, horizon_s=1e8, max_prompt_tokens=10**6, max_output_tokens=10**6)
    assert bare(all_of(wide)) == found
    assert not any("cut to" in note for note in wide.about.notes)
    # What is counted of it is what is in it.
    assert (summary.num_requests, summary.num_arrivals) == (len(found), len(list(workload)))
    prompts = [one.prompt_tokens for one in found]
    assert (summary.total_prompt_tokens, summary.prompt_tokens.max) == (sum(prompts), max(prompts))
    told = (summary.prompt_tokens.p50, summary.prompt_tokens.p90, summary.prompt_tokens.p99)
    assert told == pytest.approx(np.percentile(prompts, (50, 90, 99)))
    assert summary.output_tokens.mean == pytest.approx(np.mean([one.output_tokens for one in found]))
    if name == "mooncake-sessions":  # a text that answers are part of
        with pytest.raises(ArgumentError, match="lines must be of sessions that are lines of turns"):
            list(lines_of_workload(workload))
        return
    again = open_workload(write(tmp_path, "\n".join(lines_of_workload(workload)), "again"))
    assert bare(all_of(again)) == found


@st.composite
def own_rows(draw):
    """Rows of our own format, some with turns, in order of time; blocks as prefixes of a few texts."""
    unit, at, rows = 16, 0, []

    def lengths():
        prompt, text = draw(st.integers(1, 80)), draw(st.sampled_from(["", "a", "b"]))
        blocks = [ord(text) * 100 + place for place in range(-(-prompt // unit))] if text else []
        return {"prompt_tokens": prompt, "output_tokens": draw(st.integers(1, 9)), "blocks": blocks}

    for number in range(draw(st.integers(1, 12))):
        at += draw(st.integers(0, 10**13))
        turns = [{"wait_s": draw(st.integers(0, 999)) / 1000, **lengths()} for _ in range(draw(st.integers(0, 3)))]
        more = {"tag": draw(st.sampled_from(["", "math", "é"])), "request_id": f"r{number}", "turns": turns}
        rows.append(f'{{"arrives_s": {at // S}.{at % S:012d}, {json.dumps(lengths() | more)[1:]}')
    return "\n".join([json.dumps({"workload": "any", "unit_tokens": unit}), *rows])


@ONCE
@given(own_rows(), st.floats(0, 1e6))
def test_any_workload_comes_back_as_it_was_written_turn_by_turn(tmp_path, text, served_s):
    workload = open_workload(write(tmp_path, text))
    again = open_workload(write(tmp_path, "\n".join(lines_of_workload(workload)), "again"))
    assert again.about.unit_tokens == workload.about.unit_tokens
    served_ps = int(served_s * S)
    assert bare(all_of(again, served_ps)) == bare(all_of(workload, served_ps))


def test_sub_agents_run_side_by_side_and_are_joined(tmp_path):
    (text,) = (row["files"]["load"] for row in read_rows(OPENED) if "sub agents" in row["why"])
    (first,) = open_workload(write(tmp_path, text))
    begun = first.turns.after(100 * S)
    # They began 1, 2 and 24.5 seconds after the end of what launched them.
    assert [(one.request_id, one.arrives_ps / S) for one in begun] == [("s/2", 101), ("s/4", 102), ("s/5", 124.5)]
    (again,) = begun[0].turns.after(110 * S)
    assert (again.request_id, again.arrives_ps / S) == ("s/3", 112)  # 6 less the end at 4
    assert begun[2].turns is None  # nobody waits for the last, of which the file does not say how long it took
    assert not again.turns.after(120 * S)
    (joined,) = begun[1].turns.after(130 * S)
    assert (joined.request_id, joined.arrives_ps / S) == ("s/6", 133)  # 30 less the end at 6 + 21


def test_a_folder_of_sessions_is_one_workload(tmp_path):
    session = json.loads(AGENTS.splitlines()[1])
    for folder in ("sessions", "tables"):
        (tmp_path / folder).mkdir()
    for name in "ba":
        write(tmp_path / "sessions", lines(session | {"id": name}), f"{name}.json")
    found = list(open_workload(tmp_path / "sessions"))
    assert [one.request_id for one in found] == ["a/1", "b/1"]
    assert len({one.blocks for one in found}) == 2
    write(tmp_path / "sessions", "", ".0123456789abcdef.part")  # of a proxy that was killed as it wrote
    assert list(open_workload(tmp_path / "sessions")) == found
    write(tmp_path / "tables", AZURE)
    with pytest.raises(TraceFormatError, match="must be one file of format azure, got 'a folder'"):
        open_workload(tmp_path / "tables")


def test_bytes_that_are_no_text_and_gzip_that_is_none_or_cut(tmp_path):
    for content, said in (
        (AZURE.encode().replace(b"110", b"1\xff0"), "load: line 4: row: must be UTF-8, got 'byte 0xff'"),
        (b"\xfe" + AZURE.encode(), "load: line 1: row: must be UTF-8, got 'byte 0xfe'"),
        (MOONCAKE.encode().replace(b"1500", b"15\xff0"), "load: line 3: JSON: must be one JSON object a line"),
    ):
        with pytest.raises(TraceFormatError, match=re.escape(said)):
            list(open_workload(write(tmp_path, content)))
    path = write(tmp_path, AZURE, zipped=True)
    for content, said in ((path.read_bytes()[:-12], ""), (AZURE.encode(), ".Not a gzipped file")):
        path.write_bytes(content)
        with pytest.raises(TraceFormatError, match=rf"load\.gz: file: must be a readable file, got {said}"):
            list(open_workload(path))


# -- scaling and truncation


@ONCE
@given(
    gaps=st.lists(st.integers(0, 10**13), min_size=2, max_size=30).filter(lambda gaps: any(gaps[1:])),
    rate=st.sampled_from([0.1, 0.3, 1, 7, 1e6]),
)
def test_a_rate_is_the_mean_rate_of_what_is_read(tmp_path, gaps, rate):
    rows = [{"arrives_s": int(at) / S, "prompt_tokens": 1, "output_tokens": 1} for at in np.cumsum(gaps)]
    path = write(tmp_path, lines(*rows))
    plain = [one.arrives_ps for one in open_workload(path)]
    factor = Fraction((len(gaps) - 1) * S, plain[-1] - plain[0]) / Fraction(repr(rate))
    assume(factor * plain[-1] <= MOST_PS)
    found = [one.arrives_ps for one in open_workload(path, rate=rate)]
    assert all(abs(one - factor * other) <= Fraction(1, 2) for one, other in zip(found, plain, strict=True))
    assert found == sorted(found)


NO_TIMES = lines(*({"session_id": name, "input_length": 300, "output_length": 10} for name in "aab"))


@pytest.mark.parametrize("text", [AGENTS, NO_TIMES])
def test_sessions_without_times_begin_at_once_or_at_a_rate(tmp_path, text):
    path = write(tmp_path, text)
    assert [one.arrives_ps for one in open_workload(path)] == [0, 0]
    drawn = [[one.arrives_ps for one in open_workload(path, rate=4, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] == 0 < drawn[0][1]
    assert [open_workload(path, rate=rate).about.drawn for rate in (None, 4)] == [False, True]


def test_an_arrival_is_within_what_a_run_can_hold_once_it_is_scaled_and_cut(tmp_path):
    path = write(tmp_path, lines(*({"arrives_s": at, "prompt_tokens": 1, "output_tokens": 1} for at in (0, 5_000_000))))
    rule = "request 2: arrival: must be at most 4,611,686 s after the start, once scaled and cut, got 5000000.0"
    for more in ({}, {"horizon_s": 1e7}, {"max_output_tokens": 1}):
        with pytest.raises(TraceFormatError, match=rule):
            summary_of(open_workload(path, **more))
    for more in ({"time_scale": 0.5}, {"rate": 1}, {"horizon_s": 4e6}, {"limit": 1}):
        assert all(one.arrives_ps <= MOST_PS for one in open_workload(path, **more))
    path = write(tmp_path, OWN)
    with pytest.raises(TraceFormatError, match=rf"{path}: request b/1: arrival: must be at most"):
        summary_of(open_workload(path, time_scale=2e6))


# -- what is counted


def test_rates_shared_prefixes_and_waits(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, AZURE)))
    assert (summary.span_s, summary.rate) == (pytest.approx(0.052), pytest.approx(2 / 0.052))
    assert summary.gap_cv == pytest.approx(1)  # of 0.052 and 0
    summary = summary_of(open_workload(write(tmp_path, MOONCAKE)))
    assert (summary.asked_blocks, summary.shared_blocks, summary.shared_tokens) == (7, 3, 512 + 1024)
    assert summary.shared_share == pytest.approx((512 + 1024) / (1025 + 512 + 1500))
    assert summary_of(open_workload(write(tmp_path, SOUND["bailian"]))).shared_blocks == 2
    summary = summary_of(open_workload(write(tmp_path, AGENTS)))
    assert (summary.num_arrivals, summary.num_sessions, summary.session_requests) == (2, 1, 5)
    assert (summary.rate, summary.wait_s.max) == (None, 13.5)


ROW = {"arrives_s": 0, "prompt_tokens": 1, "output_tokens": 1}
TURN = {"wait_s": 1, "prompt_tokens": 2, "output_tokens": 1}


@pytest.mark.parametrize(
    ("rows", "line", "name"),
    [
        ([ROW | {"request_id": name} for name in ("same", "other", "same")], 3, "same"),
        ([ROW | {"request_id": "b"}, ROW | {"request_id": "a", "turns": [TURN | {"request_id": "b"}]}], 2, "b"),
    ],
)
def test_an_id_that_two_requests_have_is_told(tmp_path, rows, line, name):
    rule = f"load: line {line}: request_id: must be unique in the workload, and is that of .*load: line 1, got '{name}'"
    with pytest.raises(TraceFormatError, match=rule):
        summary_of(open_workload(write(tmp_path, lines(*rows))))


# -- memory does not follow the length of a file, however it is read


ROWS = 6_000
LOADS = {
    "vidur": lambda number: f"{number / 8},{number % 999 + 1},{number % 77 + 1}\n",
    "paceline": lambda number: (
        f'{{"arrives_s": {number / 8}, "prompt_tokens": {number % 999 + 1}, "output_tokens": 9}}\n'
    ),
}


@pytest.mark.parametrize(
    ("name", "more"), [("vidur", {}), ("vidur", {"rate": 3.0}), ("paceline", {}), (None, {"rate": 4.0})]
)
def test_a_file_is_read_as_it_is_needed_and_a_generator_draws_so(tmp_path, name, more):
    source = f"poisson:requests={ROWS},prompt=1..9,output=geometric:5"
    if name is not None:
        source = tmp_path / "load"
        head = VIDUR.splitlines(keepends=True)[0] if name == "vidur" else ""
        source.write_text(head + "".join(map(LOADS[name], range(ROWS))))
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_workload(source, **more))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ROWS
    assert peak < 1_000_000  # a buffer of the file, a row, an arrival


# -- times are read digit by digit: the nearest picosecond of what is written, whatever a float would make of it


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False))
def test_seconds_are_the_nearest_picosecond(value):
    text = f"{value:f}"
    if len(value.as_tuple().digits) <= 15 and len(text) <= 40:
        wanted = int((value * S).to_integral_value(ROUND_HALF_UP))
        assert ps_of_seconds(text) == ps_of_decimal(value) == wanted


@given(st.integers(0, MOST_READ_PS), st.integers(0, 5))
def test_picoseconds_come_back(ps, zeros):
    whole, rest = divmod(ps, S)
    assert ps_of_seconds(f"{whole}.{rest:012d}{'0' * zeros}") == ps


def test_what_is_no_time_is_none_and_sizes_beyond_all_stay_beyond():
    for text in ("", "x", "1,5", "1_0", "nan", "inf", "0x1", "٣", "1" * 60):
        assert ps_of_seconds(text) is None
    for text in ("2023-02-29 00:00:00", "2024-02-29", "2024-02-29 24:00:00", "2024-02-29 00:60:00", "x"):
        assert ps_of_moment(text) is None
    assert ps_of_decimal(Decimal("1e999999")) > 10**11 * PS_PER_S > MOST_READ_PS
    assert ps_of_decimal(Decimal("-1e999999")) < -MOST_READ_PS
    assert ps_of_decimal(Decimal("1e-999999")) == 0


def test_moments_differ_by_what_is_between():
    day = ps_of_moment("2024-02-29 00:00:00")
    assert ps_of_moment("2024-03-01 00:00:00.0000000000005+00:00") - day == 86_400 * S + 1
    assert ps_of_moment("2024-02-29T12:30:01.25Z") - day == (12 * 3600 + 30 * 60 + 1) * S + S // 4
    for zone, hours in (("+00", 0), ("-07", 7), (" +0130", -1.5), (" UTC", 0), ("+05:30", -5.5)):
        assert ps_of_moment(f"2024-02-29 00:00:00{zone}") - day == hours * 3600 * S


# -- sessions as graphs: a request comes after the last thing that it waits for, once, and none waits for ever


OUTPUT = 10


def node(number, *waits, wait_ps=0):
    turn = Turn(request_id=f"r{number}", wait_ps=wait_ps, prompt_tokens=5, output_tokens=OUTPUT)
    return Node(turn=turn, waits=tuple(waits))


@st.composite
def graphs(draw):
    nodes = [node(0)]
    for number in range(1, draw(st.integers(1, 12))):
        others = st.builds(Waits, st.integers(0, number - 1), st.sampled_from([None, 0, 3, OUTPUT]))
        waits = draw(st.lists(others, min_size=1, max_size=4, unique=True))
        nodes.append(node(number, *waits, wait_ps=draw(st.integers(0, 5))))
    return SessionGraph(nodes=tuple(nodes))


def test_requests_of_an_instant_come_in_the_order_of_the_session():
    graph = SessionGraph(nodes=(node(0), *(node(number, Waits(0)) for number in (3, 2, 1))))
    assert [request.request_id for request, _ in requests_of(graph.begin(0))] == ["r0", "r3", "r2", "r1"]


@given(graphs(), st.data())
def test_every_request_comes_after_the_last_that_it_waits_for(graph, data):
    """However long requests take, and however fast their tokens come."""
    events, arrived, happened, count = [], {}, {}, 0

    def comes(arrival):
        nonlocal count
        number = int(arrival.request_id[1:])
        assert number not in arrived
        arrived[number] = now_ps = arrival.arrives_ps
        turns = arrival.turns
        for depth in () if turns is None else turns.depths:
            now_ps += data.draw(st.integers(0, 3)) if depth else 0
            heappush(events, (now_ps, count := count + 1, number, depth, turns))
        now_ps += data.draw(st.integers(0, 5))
        heappush(events, (now_ps, count := count + 1, number, None, turns))

    comes(graph.begin(7))
    while events:
        at_ps, _, number, depth, turns = heappop(events)
        happened[Waits(number, depth)] = at_ps
        if turns is not None:
            for one in turns.after(at_ps) if depth is None else turns.reached(depth, at_ps):
                comes(one)
    assert arrived.pop(0) == 7
    assert len(arrived) == len(graph.nodes) - 1
    for number, at_ps in arrived.items():
        own = graph.nodes[number]
        assert at_ps == max(happened[wait] for wait in own.waits) + own.turn.wait_ps


def test_who_was_rejected_is_followed_by_those_that_waited_for_its_tokens():
    first = SessionGraph(nodes=(node(0), node(1, Waits(0, 4)), node(2, Waits(0)))).begin(0)
    assert [one.request_id for one in first.turns.after(3)] == ["r1", "r2"]
    assert first.turns.after(4) == []


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node(0, Waits(0))], "request 0 of a session must wait for nothing"),
        ([node(0), node(1)], "request 1 of a session must wait for another one, or never comes"),
        ([node(0), node(1, Waits(5))], r"must wait for requests in \[0, 1\], got 5"),
        ([node(0), node(1, Waits(0, 11))], "must wait for at most the 10 tokens that r0 answers, got 11"),
        ([node(0), node(1, Waits(1))], "must not wait for itself, by way of others, got r1 -> r1"),
        ([node(0), node(1, Waits(0), Waits(3)), node(2, Waits(1)), node(3, Waits(2, 1))],
         "must not wait for itself, by way of others, got r1 -> r3 -> r2 -> r1"),
    ],
)  # fmt: skip
def test_a_session_that_cannot_run_is_refused(nodes, told):
    with pytest.raises(GraphError, match=told):
        SessionGraph(nodes=tuple(nodes))
