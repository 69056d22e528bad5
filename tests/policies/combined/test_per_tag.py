"""Requests go to the policy of their tag, which learns from them alone."""

import pytest
from paceline.policies import PolicySpecError, check_policy, make_policy
from paceline.policies.about import Observable, about_of
from paceline.policies.check import check_pool
from paceline.policies.combined import PerTag
from paceline.policies.fixed import Chain, Plain

POOL = check_pool()


class Noting(Chain):
    """Writes down whom it was asked about, and what it learnt."""

    def __init__(self, pool, spec):
        super().__init__(pool, spec)
        self.asked, self.learnt, self.done = set(), set(), set()

    def decide(self, seen):
        self.asked.add((seen.request_id, seen.tag))
        return super().decide(seen)

    def learn(self, outcome):
        self.learnt.add(outcome.request_id)
        if outcome.done:
            self.done.add(outcome.request_id)


def test_each_policy_sees_its_own_tag_only():
    made = []

    def build(pool):
        made.append((Noting(pool, "draft:4/target"), Noting(pool, "mid:3/target")))
        return PerTag(pool, default=made[-1][0], b=made[-1][1])

    assert check_policy(build).lossless
    rest, b = made[-1]
    assert {tag for _, tag in rest.asked} == {"a"}
    assert {tag for _, tag in b.asked} == {"b"}
    for policy in (rest, b):
        assert {request_id for request_id, _ in policy.asked} == policy.learnt == policy.done


def test_a_tag_may_have_any_name():
    policy = make_policy("per-tag,default=plain,pool=ngram,tags=svip,self-talk=draft:1/target", POOL)
    assert isinstance(policy, PerTag)


def test_it_is_what_its_policies_are():
    about = about_of(make_policy("per-tag,default=svip,a=hedgespec", POOL))
    assert about.lossless
    assert about.observes == {Observable.signals, Observable.text}
    assert about.paper == "SVIP, arXiv:2411.18462; HedgeSpec, arXiv:2510.20064"


def test_it_says_nothing_where_a_part_says_nothing():
    class Mine(Plain):
        about = None

    assert about_of(PerTag(POOL, default=Plain(POOL), a=Mine(POOL))) is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("per-tag", "missing a required argument: 'default'"),
        ("per-tag,default=plain,=ngram", "unknown option ''; known are default, any name (tags)"),
        ("per-tag,default=plain,code=", "option 'code' must be a policy, got ''"),
        ("per-tag,default=plain,code=ngram,code=svip", "option 'code' stands twice"),
        ("per-tag,default=plain,code", "option 'code' must read key=value"),
        ("per-tag,default=plain,code=nothing", "option 'code': unknown policy 'nothing'"),
        ("per-tag,default=plain,code=two-level+most=0", "option 'code': policy 'two-level,most=0': most must be in"),
        ("per-tag,default=plain,code=draft:4", "option 'code': policy 'draft:4': chain 'draft:4'"),
        ("per-tag,default=oracle-window", "an oracle cannot be part of another policy"),
    ],
)
def test_faults_are_one_line(text, rule):
    with pytest.raises(PolicySpecError) as caught:
        make_policy(text, POOL)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)
