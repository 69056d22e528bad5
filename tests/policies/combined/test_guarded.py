"""The guard sets a policy aside that makes decoding slower, and comes back to it."""

import pytest
from paceline.policies import Draft, PolicySpecError, Verify, make_policy
from paceline.policies.about import about_of
from paceline.policies.check import check_policy, check_pool
from paceline.policies.combined import Guarded
from paceline.policies.fixed import Chain

from ..lossless.recordings import flat, recording, replayed, seconds_of

POOL = check_pool()


def guarded(tables, **options):
    return Guarded(tables.pool, policy=Chain(tables.pool, "draft:4/target"), **options)


def test_a_policy_that_pays_keeps_on():
    tables = recording(0.8)
    policy = guarded(tables)
    log = replayed(tables, flat(draft=0.05, target=1.0), policy)
    assert policy.falls == 0
    assert (log.steps["drafted"] > 0).sum() > 0.45 * len(log.steps["drafted"])


def test_a_policy_that_does_not_pay_is_set_aside_and_tried_again():
    tables = recording(0.3)
    cost = flat(draft=0.5, target=1.0)
    policy = guarded(tables, trial=8, retry=64)
    taken = seconds_of(replayed(tables, cost, policy))
    assert policy.falls > 5, "every 72 rounds it had another chance"
    plain = seconds_of(replayed(tables, cost, make_policy("plain", tables.pool)))
    alone = seconds_of(replayed(tables, cost, Chain(tables.pool, "draft:4/target")))
    assert alone > 1.5 * plain
    assert taken < 1.2 * plain


def test_it_comes_back_where_the_policy_pays_again():
    """Half of the requests have a drafter that is of no use, the other half one that is always right."""
    bad, good = recording(0.05, requests=1, tokens=400), recording(0.95, requests=1, tokens=400)
    cost = flat(draft=0.2, target=1.0)
    policy = guarded(bad, trial=4, retry=16, memory=8)
    replayed(bad, cost, policy)
    falls = policy.falls
    assert falls > 5
    log = replayed(good, cost, policy)
    assert policy.falls <= falls + 1
    assert log.ops["num_forwards"].sum() < 400 * 1.6


def test_the_margin_asks_for_more_than_no_loss():
    tables = recording(0.6)
    policy = guarded(tables, margin=2.0)
    replayed(tables, flat(draft=0.1, target=1.0), policy)
    assert policy.falls > 0


def test_nothing_is_judged_before_a_plain_round_is_over():
    """In a batch larger than the trial, rounds that commit without the target end before the first plain one."""
    report = check_policy(lambda pool: make_policy("guarded,policy=via-sd,trial=1", pool), name="guarded")
    assert report.num_tokens > 0


def test_it_waits_for_the_round_to_end():
    """Whoever drafted has the round: no step of the guard ever meets pending tokens of the policy."""
    tables = recording(0.3)
    policy = guarded(tables, trial=2, retry=3)
    decide = policy.decide

    def watch(seen):
        step = decide(seen)
        last = seen.last
        if last is not None and isinstance(last.step, Draft):
            assert step == Verify("target")
        return step

    policy.decide = watch
    replayed(tables, flat(draft=0.5, target=1.0), policy, batch=3)
    assert policy.falls > 3


def test_the_policy_learns_from_its_own_steps_only():
    class Strict(Chain):
        open = None

        def decide(self, seen):
            self.open = super().decide(seen)
            return self.open

        def learn(self, outcome):
            assert outcome.step is self.open
            self.open = None

    tables = recording(0.3)
    policy = Guarded(tables.pool, policy=Strict(tables.pool, "draft:4/target"), trial=2, retry=3)
    replayed(tables, flat(draft=0.5, target=1.0), policy)
    assert policy.falls > 3


@pytest.mark.parametrize(
    "text",
    [
        "guarded,policy=per-tag(default=two-level(most=8,start=2),code=draft:2/target),trial=3",
        "guarded(policy=per-tag(default=two-level(most=8,start=2),code=draft:2/target),trial=3)",
        "guarded,policy=per-tag+default=two-level++most=8++start=2+code=draft:2/target,trial=3",
    ],
)
def test_policies_nest(text):
    policy = make_policy(text, POOL)
    assert about_of(policy).lossless
    inner = policy.wrapped
    assert inner._default.window == 2
    assert str(inner._tags["code"].spec) == "draft:2/target"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("guarded", "missing a required argument: 'policy'"),
        ("guarded,policy=plain,trial=0", "trial must be >= 1, got 0"),
        ("guarded,policy=plain,retry=0", "retry must be >= 1, got 0"),
        ("guarded,policy=plain,memory=0", "memory must be >= 1, got 0"),
        ("guarded,policy=plain,margin=-1", "margin must be > -1 and finite, got -1.0"),
        ("guarded,policy=plain,other=plain", "unknown option 'other'; known are policy, margin, trial"),
        ("guarded,policy=two-level,most=8", "unknown option 'most'"),
        (
            "guarded,policy=adaptive(start=two)",
            "option 'policy': policy 'adaptive(start=two)': option 'start' must be a",
        ),
        (
            "guarded,policy=adaptive(start=2",
            "policy 'guarded,policy=adaptive(start=2': the ( after 'rded,policy=adaptive' is never closed",
        ),
        ("guarded,policy=adaptive)(start=2", "the ) after 'rded,policy=adaptive' closes nothing"),
        ("guarded,policy=adaptive+start=two", "option 'policy': policy 'adaptive,start=two': option 'start' must be a"),
        ("guarded,policy=plain,costs=draft:1/target:x", "costs must read member:number with numbers > 0"),
        ("guarded,policy=plain,costs=nobody:1", "unknown model 'nobody'"),
    ],
)
def test_faults_are_one_line(text, rule):
    with pytest.raises(PolicySpecError) as caught:
        make_policy(text, POOL)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)
