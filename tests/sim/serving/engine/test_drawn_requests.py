"""Which recorded request stands for a served one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.sim.serving.requests import DrawnRequests

from .served_runs import pico


def drawn(seed=0):
    return DrawnRequests(pico().trace.requests, seed=seed)


@given(st.text(max_size=10), st.integers(0, 5))
def test_a_draw_follows_from_seed_and_id(request_id, seed):
    assert drawn(seed).of(request_id, "") == drawn(seed).of(request_id, "")


def test_draws_are_known_numbers():
    assert [drawn().of(f"q{index}", "") for index in range(4)] == [
        "edit-0002",
        "prose-0009",
        "code-0001",
        "dialogue-0002",
    ]


def test_all_are_drawn_about_as_often():
    counts = Counter(drawn().of(f"q{index}", "") for index in range(60 * 100))
    assert len(counts) == len(pico().trace.requests) == 60
    assert min(counts.values()) > 60
    assert max(counts.values()) < 140


def test_another_seed_draws_others():
    ours, theirs = ([drawn(seed).of(f"q{index}", "") for index in range(100)] for seed in (0, 1))
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) < 10


def test_a_tag_is_kept_to():
    tags = {request.request_id: request.tag for request in pico().trace.requests}
    for tag in set(tags.values()):
        assert {tags[drawn().of(f"q{index}", tag)] for index in range(50)} == {tag}


def test_a_tag_that_no_request_has_is_refused():
    with pytest.raises(ArgumentError, match="request q: no request of the recording has the tag 'poetry'; it has"):
        drawn().of("q", "poetry")
