"""`draft:4/mid:8/target` reads back as it is written, and every fault in it is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Member, Pool
from paceline.policies.chain_text import parse_chain
from paceline.policies.check import check_pool

from ..decoding.strategies import chains, pools


@given(st.data())
def test_notation_reads_back_as_it_is_written(data):
    pool = data.draw(pools())
    text = data.draw(chains(pool))
    chain = parse_chain(text, pool)
    assert str(chain) == text
    assert len(chain.windows) == len(chain.members) - 1
    assert chain.members[-1] == pool.target


def test_a_chain_names_members_and_windows():
    chain = parse_chain("draft:4/mid:8/target", check_pool())
    assert (chain.members, chain.windows) == (("draft", "mid", "target"), (4, 8))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "unknown model ''"),
        ("draft/target", "'draft' needs a window, as in draft:4"),
        ("draft:/target", "the window of draft must be a whole number >= 1, got ''"),
        ("draft:0/target", "the window of draft must be a whole number >= 1, got '0'"),
        ("draft:-1/target", "the window of draft must be a whole number >= 1, got '-1'"),
        ("draft:2.5/target", "the window of draft must be a whole number >= 1, got '2.5'"),
        ("draft:²/target", "the window of draft must be a whole number >= 1, got '²'"),
        ("draft:4:5/target", "the window of draft must be a whole number >= 1, got '4:5'"),
        ("draft:4/target:8", "it must end in the target, target, without a window; its last part is 'target:8'"),
        ("draft:4/nobody", "unknown model 'nobody'; this pool has ngram, draft, mid, slim, target"),
        ("draft:4/draft:4/target", "draft stands twice"),
        ("mid:4/draft:4/target", "members must go from smallest to largest: ngram, draft, mid, slim, target"),
        ("draft:4/mid", "the last member must be the target target, got 'mid'"),
        ("draft:4/", "unknown model ''"),
        (" draft:4/target", "unknown model ' draft'"),
    ],
)
def test_faults_are_named(text, rule):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        parse_chain(text, check_pool())
    assert str(caught.value).startswith(f"chain {text!r}: {rule}")
    assert "\n" not in str(caught.value)


def test_a_pool_is_ordered():
    with pytest.raises(ValueError, match="names must be unique, got a, a"):
        Pool((Member(name="a"), Member(name="a")))
    with pytest.raises(ValueError, match="at least one model"):
        Pool(())
    with pytest.raises(ValueError, match=r"its last member .* must be a model"):
        Pool((Member(name="a", model_free=True),))
    with pytest.raises(ValueError, match="model-free members come first"):
        Pool((Member(name="a"), Member(name="b", model_free=True), Member(name="c")))
