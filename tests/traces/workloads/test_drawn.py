"""What is drawn: rates, lengths, times and sessions as texts ask for them, the same from a seed, within bounds."""

import resource
import tracemalloc
from itertools import cycle
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.base.files import shipped
from paceline.traces import open_recording
from paceline.traces.workloads import lines_of_workload, open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.drawn_arrivals import CLOSED, KINDS
from paceline.traces.workloads.drawn_sessions import SESSION_KINDS
from paceline.traces.workloads.summary import summary_of

from ...rows import check_rows

S = 10**12
LENGTHS = "prompt=100,output=10"


def gaps_of(text, **more):
    times = [one.arrives_ps for one in open_workload(f"{text},{LENGTHS}", **more)]
    assert times == sorted(times)
    return np.diff([0, *times]) / S


@pytest.mark.parametrize(
    ("kind", "cv"), [("poisson:", 1), ("diurnal:depth=0,", 1), ("gamma:cv=2.5,", 2.5), ("gamma:cv=0.3,", 0.3)]
)
def test_gaps_have_the_mean_and_the_variation(kind, cv):
    gaps = gaps_of(f"{kind}rate=4,requests=20000")
    assert abs(gaps.mean() * 4 - 1) < 5 * cv / sqrt(len(gaps))
    assert abs(gaps.std() / gaps.mean() / cv - 1) < 0.08


@given(st.sampled_from([0.3, 3, 7, 1e6]), st.integers(1, 50))
def test_constant_arrivals_stand_where_they_belong(rate, count):
    times = [one.arrives_ps for one in open_workload(f"constant:rate={rate},requests={count},{LENGTHS}")]
    assert all(abs(at - number * S / rate) <= 0.5 + 1e-9 * at for number, at in enumerate(times))
    assert len(times) == count


def test_a_diurnal_rate_follows_its_sine():
    times = np.cumsum(gaps_of("diurnal:rate=50,depth=0.8,period_s=100,seconds=800"))
    phase = (times % 100) / 100
    shares = [((phase >= start) & (phase < start + 0.25)).mean() * 4 for start in (0, 0.25, 0.5, 0.75)]
    swing = 0.8 * 2 / np.pi
    assert np.allclose(shares, [1 + swing, 1 + swing, 1 - swing, 1 - swing], atol=0.05)
    assert abs(len(times) / 40_000 - 1) < 0.02


def test_seconds_end_it_and_requests_do_and_a_rate_may_stand_beside_the_text():
    found = list(open_workload(workload := f"poisson:rate=4,seconds=50,{LENGTHS}"))
    assert all(one.arrives_ps < 50 * S for one in found)
    assert open_workload(workload).about.num_requests is None
    assert list(open_workload(f"{workload},requests=7")) == found[:7]
    assert open_workload(f"poisson:rate=4,requests=7,{LENGTHS}", limit=5).about.num_requests == 5
    assert len(list(open_workload("constant:rate=1000000,seconds=1000000,requests=3,prompt=5,output=5"))) == 3
    assert [one.arrives_ps for one in open_workload(f"constant:requests=3,{LENGTHS}", rate=2)] == [0, S // 2, S]
    bursts = f"gamma:rate=4,cv=3,requests=50,{LENGTHS}"
    times, twice = ([one.arrives_ps for one in open_workload(bursts, time_scale=scale)] for scale in (1, 2))
    assert twice == [2 * at for at in times]
    assert times == sorted(times)


def test_a_seed_gives_the_same_and_lengths_do_not_depend_on_the_process():
    text = "rate=4,requests=200,prompt=1..1000,output=geometric:50"
    draws = [
        list(open_workload(f"{kind}:{text}", seed=seed))
        for kind, seed in (("poisson", 3), ("poisson", 3), ("constant", 3), ("poisson", 4))
    ]
    lengths = [[(one.prompt_tokens, one.output_tokens) for one in draw] for draw in draws]
    assert draws[0] == draws[1]
    assert lengths[0] == lengths[2] != lengths[3]


def test_lengths_have_the_means_they_say():
    text = "constant:rate=1,requests=20000,prompt=lognormal:500:0.7,output=geometric:80"
    found = list(open_workload(text))
    prompts, outputs = (np.array([getattr(one, key) for one in found]) for key in ("prompt_tokens", "output_tokens"))
    assert abs(prompts.mean() / 500 - 1) < 0.03
    assert abs(prompts.std() / prompts.mean() / 0.7 - 1) < 0.06
    assert abs(outputs.mean() / 80 - 1) < 0.03
    assert abs(outputs.std() / outputs.mean() - 1) < 0.05
    assert min(prompts.min(), outputs.min()) >= 1
    assert {one.output_tokens for one in open_workload("constant:rate=1,requests=5,prompt=9,output=geometric:1")} == {1}


def test_lengths_and_tags_are_those_of_a_recording():
    recording = open_recording(shipped("recordings", "pico.trace"))
    known = {(len(one.prompt), len(one.trie.trunk) - 1, one.tag) for one in recording.requests}
    found = list(open_workload("poisson:rate=4,requests=300", lengths_from=recording))
    assert {(one.prompt_tokens, one.output_tokens, one.tag) for one in found} <= known
    tag = recording.requests[0].tag
    tagged = list(open_workload(f"poisson:rate=4,requests=300,tag={tag},output=7", lengths_from=recording))
    assert {one.tag for one in tagged} == {tag}
    assert {one.output_tokens for one in tagged} == {7}
    assert {one.prompt_tokens for one in tagged} <= {prompt for prompt, _, of in known if of == tag}
    with pytest.raises(ArgumentError, match="tag must be of the requests of pico, got 'none'"):
        open_workload("poisson:rate=1,requests=5,tag=none", lengths_from=recording)


# -- sessions: what their requests read, write and share, and in which order they come


TEXTS = {
    "tree-rollouts": "tree-rollouts:branch=2@0/3@7/2@40,prompt=5..90,output=41..60,sessions=3",
    "persistent-agent": "persistent-agent:turns=2..9,system=70,prompt=1..40,output=1..50,wait=exponential:2,sessions=3",
    "shared-workers": "shared-workers:workers=3,rounds=4,prompt=5..90,output=1..40,sessions=3",
    "react": "react:steps=1..6,system=33,prompt=1..40,output=1..50,observation=1..60,wait=1.5,sessions=3",
    "rewoo": "rewoo:steps=1..6,system=33,prompt=1..40,output=1..50,observation=1..60,wait=1.5,sessions=3",
}


def sessions_of(text, **options):
    return [list(requests_of(first)) for first in open_workload(text, **options)]


def plain(sessions):
    return [(one._replace(turns=None), wait_ps) for session in sessions for one, wait_ps in session]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@given(seed=st.integers(0, 1000), unit=st.sampled_from([1, 4, 16, 100]), rate=st.sampled_from([None, 3.0]))
def test_ids_tell_texts_apart_and_a_seed_tells_all(text, seed, unit, rate):
    """An id stands for one place and one text before it; what somebody wrote, only those have who follow."""
    sessions = sessions_of(f"{text},unit={unit}", seed=seed, rate=rate)
    assert plain(sessions) == plain(sessions_of(f"{text},unit={unit}", seed=seed, rate=rate))
    before, writers, names = {}, {}, set()
    for session in sessions:
        for one, _ in session:
            assert one.request_id not in names
            names.add(one.request_id)
            assert len(one.blocks) == one.prompt_tokens // unit
            text_ids = (*one.blocks, *one.answer)
            assert len(text_ids) <= (one.prompt_tokens + one.output_tokens) // unit
            for place, block in enumerate(text_ids):
                assert before.setdefault(block, (place, text_ids[:place][-1:])) == (place, text_ids[:place][-1:])
            for block in one.answer:
                assert writers.setdefault(block, one.request_id) == one.request_id


def test_paths_of_a_tree_are_those_of_its_notation():
    (session,) = sessions_of("tree-rollouts:branch=4@0/2@32/2@64,prompt=256,output=128,sessions=1")
    assert len(session) == 16
    assert sum(one.output_tokens for one, _ in session) == 4 * 32 + 8 * 32 + 16 * 64
    assert {one.prompt_tokens + one.output_tokens for one, _ in session} == {256 + 128}
    assert sorted(one.prompt_tokens - 256 for one, _ in session) == [0] * 4 + [32] * 4 + [64] * 8
    whole = {one.blocks + one.answer for one, _ in session}
    for one, _ in session:
        assert any(other[: len(one.blocks)] == one.blocks and other != one.blocks + one.answer for other in whole)
    assert len({text[-1] for text in whole}) == 16


@given(st.integers(1, 30), st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_react_sends_with_the_square_of_its_calls_and_rewoo_with_their_number(steps, prompt, output, observation):
    of = f"steps={steps},prompt={prompt},output={output},observation={observation},sessions=1,wait=2"
    (react,), (rewoo,) = (sessions_of(f"{kind}:{of}") for kind in ("react", "rewoo"))
    for session in (react, rewoo):
        assert sum(one.output_tokens for one, _ in session) == (steps + 1) * output
        assert sum(wait_ps or 0 for _, wait_ps in session) == 2 * 10**12 * steps
    grown = (output + observation) * steps * (steps + 1) // 2
    assert sum(one.prompt_tokens for one, _ in react) == (steps + 1) * prompt + grown
    assert sum(one.prompt_tokens for one, _ in rewoo) == 2 * prompt + steps * (output + observation)


def test_a_persistent_agent_finds_more_than_four_fifths():
    text = "persistent-agent:turns=40,system=2000,prompt=lognormal:300:1,output=geometric:200,sessions=20,rate=1"
    summary = summary_of(open_workload(text))
    assert summary.shared_share > 0.8
    assert summary.num_sessions == 20
    assert summary.num_requests == 800 == summary.about.num_requests


def test_workers_read_again_what_others_wrote_beside_them():
    (session,) = sessions_of("shared-workers:workers=3,rounds=2,prompt=64,output=32,unit=16,sessions=1")
    first, second = session[:3], session[3:]
    assert {one.blocks for one, _ in first} == {first[0][0].blocks}
    (context,) = {one.blocks for one, _ in second}
    assert len(context) * 16 == 64 + 3 * 32
    assert context[:6] == first[0][0].blocks + first[0][0].answer
    written = {block for one, _ in first for block in one.answer}
    assert not written & set(context[6:])


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_session_with_more_text_than_the_bound_is_refused(text, monkeypatch):
    monkeypatch.setattr("paceline.traces.workloads.drawn_sessions.MOST_UNITS", 8)
    with pytest.raises(ArgumentError, match="sessions must have at most 8 units of text, got"):
        list(open_workload(f"{text},unit=1"))


def test_long_sessions_share_no_ids():
    """The longest that there may be."""
    first, second = open_workload("persistent-agent:turns=1,prompt=3999999,output=1,unit=1,sessions=2")
    assert first.blocks[-1] < second.blocks[0]


def test_it_is_known_how_many_come_and_a_graph_is_not_written_as_a_line():
    """Of a limit, which is one of arrivals, too: that many requests were told, of sessions of three."""
    for limit in (None, 2, 9):
        workload = open_workload("react:steps=2,prompt=5,output=9,observation=3,sessions=4", limit=limit)
        about, summary = workload.about, summary_of(workload)
        assert (about.num_requests, about.num_arrivals) == (summary.num_requests, summary.num_arrivals)
    with pytest.raises(ArgumentError, match="must be of sessions that are lines of turns"):
        list(lines_of_workload(open_workload(TEXTS["tree-rollouts"])))


# -- sizes that nobody can run are refused by a stated bound, before memory is taken: every key of every generator


PLAIN = {"rate": "2", "requests": "3", "prompt": "5", "output": "7"}
SOUND = {kind: PLAIN | ({"cv": "2"} if kind == "gamma" else {}) for kind in KINDS if kind != CLOSED}
SOUND[CLOSED] = {key: value for key, value in PLAIN.items() if key != "rate"} | {"concurrency": "2"}
TOOLS = {"steps": "3", "prompt": "5", "output": "7", "observation": "9", "system": "4", "sessions": "2", "unit": "16"}
SOUND |= {
    "tree-rollouts": {"branch": "2@0/2@3", "prompt": "5", "output": "9", "sessions": "2", "unit": "16"},
    "persistent-agent": {"turns": "3", "prompt": "5", "output": "7", "system": "4", "sessions": "2", "unit": "16"},
    "shared-workers": {"workers": "2", "rounds": "2", "prompt": "5", "output": "7", "sessions": "2", "unit": "16"},
    "react": TOOLS,
    "rewoo": TOOLS,
}
HUGE = ("2147483648", "99999999999999999999", "100000000")
DRAWN = ("geometric:{}", "lognormal:{}:1", "1..{}")
OF_LENGTHS = {"prompt", "output", "observation", "turns", "steps"}
UNBOUNDED = {"unit", "rate", "cv"}  # none of them takes memory


def text_of(kind, options):
    return f"{kind}:{','.join(f'{key}={value}' for key, value in options.items())}"


def cases():
    for kind, options in SOUND.items():
        for key in options:
            if key not in UNBOUNDED:
                forms = ("{}@0",) if key == "branch" else ("{}", *(DRAWN if key in OF_LENGTHS else ()))
                yield from ((kind, key, form.format(size)) for form, size in zip(forms, cycle(HUGE), strict=False))


def test_the_table_knows_all_kinds():
    assert set(SOUND) == {*KINDS, *SESSION_KINDS}
    for kind, options in SOUND.items():
        assert sum(1 for arrival in open_workload(text_of(kind, options)) for _ in requests_of(arrival)) >= 2


def test_a_huge_size_is_refused_before_memory_is_taken():
    def check(kind, key, value):
        tracemalloc.start()
        try:
            with pytest.raises(ArgumentError, match=rf"{key}|sessions must have at most"):
                next(iter(open_workload(text_of(kind, SOUND[kind] | {key: value}))))
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()

    check_rows(cases(), check)


def test_a_workload_without_a_request_is_refused():
    for text, more in (
        (f"poisson:rate=0.01,seconds=1,{LENGTHS}", {}),
        (f"poisson:rate=1,requests=9,{LENGTHS}", {"horizon_s": 1e-6}),
    ):
        with pytest.raises(ArgumentError, match=r"`workload` must have a request in its time, poisson.* has none"):
            list(open_workload(text, **more))


@pytest.mark.parametrize(
    "text",
    [
        "poisson:rate=1000000,seconds=1000000,prompt=5,output=5",
        "react:steps=3,prompt=5,output=7,observation=9,rate=1000000,seconds=1000000",
        "react:steps=9999,prompt=5,output=7,observation=9,sessions=10000000",
        "shared-workers:workers=5000,rounds=5000,prompt=5,output=5,sessions=1",
        "tree-rollouts:branch=10000@0,prompt=1000000,output=5,sessions=1",
        "persistent-agent:turns=10000,prompt=10000000,output=10000000,sessions=1",
        "persistent-agent:turns=2,prompt=10000000,output=10,unit=1,sessions=1",
        "persistent-agent:turns=geometric:10000,prompt=1,output=1,sessions=200",
        "shared-workers:workers=2,rounds=2,prompt=3000000,output=3000000,unit=1,sessions=1",
    ],
)
def test_sizes_that_are_huge_together_are_refused(text):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArgumentError, match=r"must (have|give) at most (10,000|10,000,000|4,000,000) "):
        sum(1 for _ in open_workload(text))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
