"""Sessions that are drawn: what their requests read, write and share, and in which order they come."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.traces.workloads import lines_of_workload, open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.summary import summary_of

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
@settings(max_examples=20)
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
    """Each path is a request; it reads what its parent wrote, and the tokens are those that the docstring counts."""
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
    monkeypatch.setattr("paceline.traces.workloads.sharing.MOST_UNITS", 8)
    with pytest.raises(ArgumentError, match="sessions must have at most 8 units of text, got"):
        list(open_workload(f"{text},unit=1"))


def test_long_sessions_share_no_ids():
    """The longest that there may be."""
    first, second = open_workload("persistent-agent:turns=1,prompt=3999999,output=1,unit=1,sessions=2")
    assert first.blocks[-1] < second.blocks[0]


@pytest.mark.parametrize("limit", [None, 2, 9])
def test_it_is_known_how_many_come(limit):
    """Of a limit, which is one of arrivals, too: that many requests were told, of sessions of three."""
    workload = open_workload("react:steps=2,prompt=5,output=9,observation=3,sessions=4", limit=limit)
    summary = summary_of(workload)
    assert (workload.about.num_requests, workload.about.num_arrivals) == (summary.num_requests, summary.num_arrivals)


def test_a_graph_is_not_written_as_a_line():
    with pytest.raises(ArgumentError, match="must be of sessions that are lines of turns"):
        list(lines_of_workload(open_workload(TEXTS["tree-rollouts"])))


@pytest.mark.parametrize("cut", [{"max_output_tokens": 39}, {"max_output_tokens": 1}])
def test_an_answer_is_not_cut_above_the_depth_at_which_it_branches(cut):
    with pytest.raises(ValueError, match="max_output_tokens: must leave the 40 tokens of request 1 that others go on"):
        plain(sessions_of(TEXTS["tree-rollouts"], **cut))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tree-rollouts:sessions=1,prompt=5,output=9", "tree-rollouts must have branch, prompt, output, got no branch"),
        (
            "tree-rollouts:branch=0@0,sessions=1,prompt=5,output=9",
            "branch of tree-rollouts must have at least 1 path at each depth, got 0@0",
        ),
        ("tree-rollouts:branch=2@9,sessions=1,prompt=5,output=9", "output of tree-rollouts must be above the depth 9"),
        ("tree-rollouts:branch=2@9,sessions=1,prompt=5,output=geometric:99", "must be above the depth 9"),
        ("tree-rollouts:branch=2@4/2@4,sessions=1,prompt=5,output=9", "must have ascending depths"),
        ("tree-rollouts:branch=2@-1,sessions=1,prompt=5,output=9", "must be N@DEPTH"),
        (
            "tree-rollouts:branch=101@0/100@1,sessions=1,prompt=5,output=9",
            "branch of tree-rollouts must make at most 10,000",
        ),
        ("tree-rollouts:branch=2@0,prompt=5,output=9", "must have sessions, or seconds and a rate"),
        ("react:steps=0,prompt=5,output=9,observation=3,sessions=1", "steps of react must be N, A..B"),
        ("react:steps=2,prompt=5,output=9,sessions=1", "got no observation in"),
        ("rewoo:steps=2,prompt=5,output=9,observation=3,sessions=1,wait=-1", "wait of rewoo must be SECONDS or"),
        ("shared-workers:workers=0,rounds=1,prompt=5,output=9,sessions=1", "workers of shared-workers must be in"),
        ("persistent-agent:turns=2,prompt=5,output=9,sessions=0", "sessions of persistent-agent must be in"),
        ("persistent-agent:turns=2,prompt=5,output=9,sessions=1,unit=0", "unit of persistent-agent must be in"),
        (
            "persistent-agent:turns=2,prompt=5,output=9,sessions=1,depth=0",
            "persistent-agent must have options that it takes .known are rate",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(text, told):
    with pytest.raises(ArgumentError, match=told):
        open_workload(text)
