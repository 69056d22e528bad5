"""Scaling and truncation, only as asked for, exact and counted; what a workload holds; memory that follows no file."""

import json
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from paceline.traces import TraceFormatError
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import MOST_PS
from paceline.traces.workloads.summary import summary_of

from .files import AGENTS, AZURE, MOONCAKE, OWN, SOUND, VIDUR, all_of, lines, write

S = 10**12
ONCE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@ONCE
@given(
    gaps=st.lists(st.integers(0, 10**13), min_size=2, max_size=30).filter(lambda gaps: any(gaps[1:])),
    rate=st.sampled_from([0.1, 0.3, 1, 7, 1e6]),
)
def test_a_rate_is_the_mean_rate_of_what_is_read(tmp_path, gaps, rate):
    at, rows = 0, []
    for gap in gaps:
        at += gap
        rows.append({"arrives_s": at / S, "prompt_tokens": 1, "output_tokens": 1})
    path = write(tmp_path, lines(*rows))
    plain = [one.arrives_ps for one in open_workload(path)]
    factor = Fraction((len(gaps) - 1) * S, plain[-1] - plain[0]) / Fraction(repr(rate))
    assume(factor * plain[-1] <= MOST_PS)
    found = [one.arrives_ps for one in open_workload(path, rate=rate)]
    assert all(abs(one - factor * other) <= Fraction(1, 2) for one, other in zip(found, plain, strict=True))
    assert found == sorted(found)


LATE = {"after": ["a"], "wait_s": 9, "prompt_tokens": 5, "output_tokens": 5}
JOINED = LATE | {"after": ["a/1", "a/2"], "wait_s": 0}
GRAPH = {"request_id": "a", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 5, "graph": [LATE, LATE, JOINED]}
EMPTY = VIDUR.replace(",44\n", ",0\n")
LEFT_OUT = "requests of sessions that the horizon leaves out, and what waits for them: "
# A file, options, of each request its id, seconds, prompt, output, blocks and tag; a note.
CHANGES = [
    (VIDUR, {"rate": 2, "limit": 2}, [("2", 0, 374, 44, (), ""), ("3", 0.5, 396, 109, (), "")],
     "times of arrival are scaled by 0.0848514, from 0.169703/s to 2/s"),
    (AZURE, {"horizon_s": 0.052}, [("2", 0, 4808, 10, (), "")], "what would arrive at 0.052 s or later is left out"),
    # A turn would come at 5.5.
    (OWN, {"horizon_s": 5.5}, [("2", 0.1, 20, 3, (5, 6), "math"), ("b", 2, 16, 4, (), "")], LEFT_OUT + "1"),
    (lines(GRAPH), {"horizon_s": 5}, [("a", 0, 5, 5, (), "")], LEFT_OUT + "2"),
    # A cut prompt loses the id of the unit that was cut.
    (MOONCAKE, {"max_prompt_tokens": 1000, "max_output_tokens": 2},
     [("1", 0, 1000, 2, (0,), ""), ("2", 27.482, 512, 2, (0,), ""), ("3", 27.482, 1000, 2, (0,), "")],
     "outputs cut to 2 tokens: 3"),
    (OWN, {"max_prompt_tokens": 18, "tag": "code"},
     [("2", 0.1, 18, 3, (5,), "code"), ("b", 2, 16, 4, (), "code"), ("b/1", 5.5, 18, 2, (5,), "code")],
     "prompts cut to 18 tokens: 2"),
    (EMPTY, {"zero_tokens": "drop", "limit": 1}, [("3", 5.892655, 396, 109, (), "")],
     "requests without a token of prompt or output dropped: 1"),
    (EMPTY, {"zero_tokens": "one", "limit": 2}, [("2", 0, 374, 1, (), ""), ("3", 5.892655, 396, 109, (), "")],
     "requests without a token of prompt or output served with one: 1"),
]  # fmt: skip


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: str(row[1]))
def test_what_is_asked_for_is_done_and_said(tmp_path, row):
    text, options, wanted, note = row
    workload = open_workload(write(tmp_path, text), **options)
    assert [
        (one.request_id, one.arrives_ps / S, one.prompt_tokens, one.output_tokens, one.blocks, one.tag)
        for one in all_of(workload)
    ] == wanted
    assert note in workload.about.notes


def test_a_rate_leaves_waits_alone_and_a_time_scale_does_not(tmp_path):
    path = write(tmp_path, OWN)
    plain, faster, longer = (all_of(open_workload(path, **more)) for more in ({}, {"rate": 1}, {"time_scale": 3}))
    waits = [found[2].arrives_ps - found[1].arrives_ps - 2 * S for found in (plain, faster, longer)]
    assert waits == [S * 3 // 2, S * 3 // 2, S * 9 // 2]
    assert longer[1].arrives_ps == 6 * S
    assert faster[1].arrives_ps - faster[0].arrives_ps == S


def test_sessions_without_times_begin_at_once_or_at_a_rate(tmp_path):
    path = write(tmp_path, AGENTS)
    assert [one.arrives_ps for one in open_workload(path)] == [0, 0]
    drawn = [[one.arrives_ps for one in open_workload(path, rate=4, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] == 0 < drawn[0][1]


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


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_changed_unless_it_is_asked_for(tmp_path, name):
    path = write(tmp_path, SOUND[name])
    bare = lambda found: [one._replace(turns=None) for one in found]  # noqa: E731
    wide = open_workload(path, limit=100, horizon_s=1e8, max_prompt_tokens=10**6, max_output_tokens=10**6)
    assert bare(all_of(wide)) == bare(all_of(open_workload(path)))
    assert not any("cut to" in note for note in wide.about.notes)


def test_a_dropped_turn_hands_on_its_wait_and_its_blocks(tmp_path):
    first, second = (json.loads(line) for line in AGENTS.splitlines())
    first["requests"][1]["out"] = 0
    found = all_of(open_workload(write(tmp_path, lines(first, second)), zero_tokens="drop"))
    assert [one.request_id for one in found] == ["one/1", "one/3", "one/4", "one/5", "two/1"]
    # From the end at 7.34 to 21.5, where the sub-agent begins, less the 2 that the dropped one took.
    assert found[1].arrives_ps == 2 * S + int(12.16 * S)
    assert tuple(block % 2**24 for block in found[3].blocks) == (1, 2, 3, 4)


def test_a_first_request_that_is_dropped_does_not_delay_its_session(tmp_path):
    first, second = (json.loads(line) for line in AGENTS.splitlines())
    first["requests"][0]["out"] = 0
    found = list(open_workload(write(tmp_path, lines(first, second)), zero_tokens="drop"))
    assert [(one.request_id, one.arrives_ps) for one in found] == [("one/2", 0), ("two/1", 0)]


# -- what is counted of a workload is what is in it


@pytest.mark.parametrize("name", SOUND)
def test_counts_are_those_of_the_requests(tmp_path, name):
    workload = open_workload(write(tmp_path, SOUND[name]))
    found, summary = all_of(workload), summary_of(workload)
    assert summary.num_requests == len(found)
    assert summary.num_arrivals == len(list(workload))
    prompts = [one.prompt_tokens for one in found]
    assert (summary.total_prompt_tokens, summary.prompt_tokens.max) == (sum(prompts), max(prompts))
    assert summary.prompt_tokens.p90 == pytest.approx(np.percentile(prompts, 90))
    assert summary.output_tokens.mean == pytest.approx(np.mean([one.output_tokens for one in found]))


def test_rate_and_burstiness_are_of_the_gaps(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, AZURE)))
    assert summary.span_s == pytest.approx(0.052)
    assert summary.rate == pytest.approx(2 / 0.052)
    assert summary.gap_cv == pytest.approx(1)  # of 0.052 and 0


def test_shared_prefixes_are_leading_blocks_that_were_there(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, MOONCAKE)))
    assert (summary.asked_blocks, summary.shared_blocks, summary.shared_tokens) == (7, 3, 512 + 1024)
    assert summary.shared_share == pytest.approx((512 + 1024) / (1025 + 512 + 1500))


def test_sessions_and_waits(tmp_path):
    summary = summary_of(open_workload(write(tmp_path, AGENTS)))
    assert (summary.num_arrivals, summary.num_sessions, summary.session_requests) == (2, 1, 5)
    assert summary.rate is None
    assert summary.wait_s.max == 13.5


def test_an_id_that_two_requests_have_is_told(tmp_path):
    row = {"request_id": "same", "arrives_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    workload = open_workload(write(tmp_path, lines(row, row | {"request_id": "other"}, row)))
    with pytest.raises(
        TraceFormatError,
        match=r"load: line 3: request_id: must be unique in the workload, and is that of .*load: line 1, got 'same'",
    ):
        summary_of(workload)


def test_ids_of_turns_and_of_other_sessions_are_told_with_their_lines(tmp_path):
    row = {"arrives_s": 0, "prompt_tokens": 1, "output_tokens": 1}
    turns = [{"wait_s": 1, "prompt_tokens": 2, "output_tokens": 1, "request_id": "b"}]
    path = write(tmp_path, lines(row | {"request_id": "b"}, row | {"request_id": "a", "turns": turns}))
    with pytest.raises(TraceFormatError, match=r"load: line 2: request_id: .*, and is that of .*load: line 1, got 'b'"):
        summary_of(open_workload(path))


def test_turns_whose_prompts_are_cut_to_one_text_are_told(tmp_path):
    turns = [{"wait_s": 1, "prompt_tokens": tokens, "output_tokens": 1} for tokens in (30, 60)]
    row = {"arrives_s": 0, "prompt_tokens": 20, "output_tokens": 1, "turns": turns}
    workload = open_workload(write(tmp_path, lines(row)), max_prompt_tokens=25)
    summary_of(workload)
    assert (
        "prompts of later turns cut to 25 tokens: turns of a session then have one text, which a prefix cache finds: 2"
        in (workload.about.notes)
    )
    summary_of(whole := open_workload(write(tmp_path, lines(row)), max_prompt_tokens=60))
    assert not any("later turns" in note for note in whole.about.notes)


# -- memory does not follow the length of a file, however it is read


ROWS = 6_000
MOST_BYTES = 1_000_000  # a buffer of the file, a row, an arrival


def vidur(path, count):
    with path.open("w") as file:
        file.write("arrived_at,num_prefill_tokens,num_decode_tokens\n")
        file.writelines(f"{number / 8},{number % 999 + 1},{number % 77 + 1}\n" for number in range(count))


def own(path, count):
    with path.open("w") as file:
        file.writelines(
            f'{{"arrives_s": {number / 8}, "prompt_tokens": {number % 999 + 1}, "output_tokens": 9}}\n'
            for number in range(count)
        )


@pytest.mark.parametrize("make", [vidur, own])
@pytest.mark.parametrize("more", [{}, {"rate": 3.0}])
def test_a_file_is_read_as_it_is_needed(tmp_path, make, more):
    make(tmp_path / "load", ROWS)
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_workload(tmp_path / "load", **more))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ROWS
    assert peak < MOST_BYTES


def test_a_generator_draws_as_it_is_asked():
    tracemalloc.start()
    try:
        count = sum(1 for _ in open_workload(f"poisson:rate=4,requests={ROWS},prompt=1..9,output=geometric:5"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == ROWS
    assert peak < MOST_BYTES
