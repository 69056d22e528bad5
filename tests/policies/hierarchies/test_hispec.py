"""HiSpec is a chain of three levels, whose middle is the cheapest verifier unless another is named."""

import numpy as np
import pytest
from paceline.policies import Member, Pool, make_policy
from paceline.policies.about import decides_by_pending
from paceline.policies.check import check_pool

from ..lossless.recordings import flat, recording, replayed


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        ("hispec", "draft:4/mid:8/target"),
        ("hispec,tokens=2,gather=3", "draft:2/mid:3/target"),
        ("hispec,draft=mid,middle=slim", "mid:4/slim:8/target"),
        ("hispec,draft=ngram", "ngram:4/draft:8/target"),
        ("hispec,middle=slim", "draft:4/slim:8/target"),
    ],
)
def test_it_is_the_chain_of_its_members(text, chain):
    policy = make_policy(text, check_pool())
    assert str(policy.spec) == chain
    assert decides_by_pending(policy)


def test_it_takes_the_steps_of_that_chain():
    tables, cost = recording(0.7, 0.9), flat(draft=0.02, mid=0.1, target=1.0)
    logs = [replayed(tables, cost, make_policy(text, tables.pool)) for text in ("hispec", "draft:4/mid:8/target")]
    for name in logs[0].steps:
        np.testing.assert_array_equal(logs[0].steps[name], logs[1].steps[name])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("hispec,tokens=0", r"tokens must be in \[1, 1,000,000\], got 0"),
        ("hispec,gather=0", r"gather must be in \[1, 1,000,000\], got 0"),
        ("hispec,draft=slim", "policy hispec needs a verifier between 'slim' and the target; the pool has ngram"),
        ("hispec,middle=draft", "policy hispec needs a verifier between 'draft' and 'target', got 'draft'"),
        ("hispec,middle=nobody", "unknown model 'nobody'"),
    ],
)
def test_options_out_of_range_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        make_policy(text, check_pool())


def test_a_middle_member_must_be_able_to_verify():
    pool = Pool((Member(name="draft"), Member(name="mid", drafts_only=True), Member(name="target")))
    with pytest.raises(ValueError, match="policy hispec needs a verifier between 'draft' and the target"):
        make_policy("hispec", pool)
    with pytest.raises(ValueError, match="policy hispec needs a middle member that can verify, 'mid' cannot"):
        make_policy("hispec,middle=mid", pool)
