"""Ranges of windows are the chains that they stand for."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.pool import Member, Pool
from paceline.policies.chain_text import chains_in, parse_chain

POOL = Pool(members=tuple(Member(name=name) for name in ("draft", "mid", "target")))


def names(*texts, most=1000):
    return [str(chain) for chain in chains_in(texts, POOL, most=most)]


@given(
    first=st.integers(1, 20),
    more=st.integers(0, 20),
    step=st.integers(1, 5),
    low=st.integers(1, 9),
    high=st.integers(0, 5),
)
def test_every_window_of_every_range(first, more, step, low, high):
    text = f"draft:{first}..{first + more}:{step}/mid:{low}..{low + high}/target"
    windows = product(range(first, first + more + 1, step), range(low, low + high + 1))
    assert names(text) == [f"draft:{one}/mid:{other}/target" for one, other in windows]
    assert chains_in([text], POOL, most=1000)[0] == parse_chain(f"draft:{first}/mid:{low}/target", POOL)


def test_a_number_is_a_range_of_one_and_a_chain_of_two_texts_is_one():
    assert names("draft:4/target") == ["draft:4/target"]
    assert names("draft:1..3/target", "draft:2..4/target") == [f"draft:{window}/target" for window in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("draft/target", "sweep 'draft/target': 'draft' needs a window or a range, as in draft:4"),
        ("draft:1..x/target", "sweep 'draft:1..x/target': 'draft:1..x' needs a window or a range"),
        ("draft:5..1/target", "windows of draft must go up from 1 or more, in steps of 1 or more, got 5..1"),
        ("draft:0..4/target", "must go up from 1 or more, in steps of 1 or more, got 0..4"),
        ("draft:1..4:0/target", "must go up from 1 or more, in steps of 1 or more, got 1..4:0"),
        ("draft:1..99999999/target", "needs a window or a range"),
        ("draft:１..4/target", "needs a window or a range"),
        ("nobody:1..4/target", "chain 'nobody:1/target': "),
        ("draft:1..4/target:2", "it must end in the target, target, without a window"),
        ("", "chain ''"),
    ],
)
def test_what_is_no_sweep(text, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        names(text)


def test_more_than_is_allowed_is_counted_before_it_is_made():
    with pytest.raises(ValueError, match="a sweep must hold 1,000 cells at most, got 999,998,000,001 chains in draft"):
        names("draft:1..999999/mid:1..999999/target")
    assert len(names("draft:1..1000/target")) == 1000
