"""Policies made of policies: the guard, one a tag, one until it does not pay, and none that is lossy."""

import numpy as np
import pytest
from paceline.policies import Commit, Draft, PolicyError, Ratio, Verify, check_policy, make_policy
from paceline.policies.about import Observable, about_of
from paceline.policies.check import check_pool
from paceline.policies.combined import Guarded, OnlyLossless, PerTag, PerTurn
from paceline.policies.fixed import Chain, Plain

from ..decoding.script import Script, run
from .making import built_by_check, flat, recording, replayed, seconds_of

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
    assert taken < 1.2 * seconds_of(replayed(tables, cost, make_policy("plain", tables.pool)))


def test_it_comes_back_where_the_policy_pays_again():
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
    report = check_policy(lambda pool: make_policy("guarded,policy=via-sd,trial=1", pool), name="guarded")
    assert report.num_tokens > 0


def test_it_waits_for_the_round_to_end():
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


CHEAP = flat(draft=0.05, target=1.0)


def per_turn(tables, **options):
    return PerTurn(tables.pool, policy=Chain(tables.pool, "draft:4/target"), **options)


def drafted_by_request(log):
    """(steps that drafted, steps) by request."""
    of, drafted = log.steps["request"], log.steps["drafted"] > 0
    return [(drafted[of == place].sum(), (of == place).sum()) for place in range(len(log.requests["request_id"]))]


@pytest.mark.parametrize("options", [{}, {"by": "acceptance"}])
def test_a_policy_that_pays_keeps_every_request(options):
    tables = recording(0.95)
    policy = per_turn(tables, **options)
    log = replayed(tables, CHEAP, policy)
    assert policy.falls == 0
    assert seconds_of(log) == seconds_of(replayed(tables, CHEAP, Chain(tables.pool, "draft:4/target")))


@pytest.mark.parametrize(
    ("options", "cost"),
    [({}, flat(draft=0.5, target=1.0)), ({"by": "acceptance", "least": 0.5}, CHEAP)],
    ids=["speed", "acceptance"],
)
def test_a_policy_that_does_not_pay_loses_every_request_after_its_first_rounds(options, cost):
    tables = recording(0.3, requests=6, tokens=200)
    policy = per_turn(tables, after=4, window=8, **options)
    log = replayed(tables, cost, policy)
    assert policy.falls == 6
    for drafts, steps in drafted_by_request(log):
        assert 4 <= drafts < 40
        assert steps > 100


def test_a_request_that_went_over_never_comes_back_and_the_next_one_starts_anew():
    tables = recording(0.05, requests=3, tokens=100)
    policy = per_turn(tables, after=2, window=2, by="acceptance", least=0.5)
    log = replayed(tables, CHEAP, policy)
    for place in range(3):
        drafts = log.steps["drafted"][log.steps["request"] == place] > 0
        assert drafts[:2].any(), "every request begins with the policy"
        assert not drafts[np.flatnonzero(drafts)[:2][-1] + 1 :].any(), "what was lost stays lost"


def test_the_other_policy_may_draft_as_well():
    tables = recording(0.4, requests=4, tokens=100)
    policy = per_turn(tables, then=make_policy("draft:1/target", tables.pool), after=4, window=4, least=9.0)
    asked = replayed(tables, CHEAP, policy).steps["asked"]
    assert policy.falls == 4
    assert {1, 4} <= set(asked.tolist())


def test_rounds_without_drafts_say_nothing_of_acceptance():
    policy = PerTurn(POOL, policy=make_policy("plain", POOL), by="acceptance", least=1.0, after=1, window=1)
    check_policy(lambda pool: policy)
    assert policy.falls == 0


def test_nothing_is_kept_of_requests_that_are_done():
    made = built_by_check(
        lambda pool: PerTurn(pool, policy=Chain(pool, "draft:4/target"), after=1, window=1, least=9.0)
    )
    assert all(not policy._open for policy in made)


def test_trees_are_judged_by_speed_and_what_works_ahead_by_acceptance():
    make_policy("per-turn,policy=tree", POOL)
    make_policy("per-turn,policy=pearl(window=3),by=acceptance", POOL)


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
    make = lambda pool: PerTag(pool, default=Noting(pool, "draft:4/target"), b=Noting(pool, "mid:3/target"))  # noqa: E731
    policy = built_by_check(make)[-1]
    for part, tag in ((policy._default, "a"), (policy._tags["b"], "b")):
        assert {asked for _, asked in part.asked} == {tag}
        assert {request_id for request_id, _ in part.asked} == part.learnt == part.done


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


@pytest.mark.parametrize("step", [Commit(1), Verify("target", Ratio(0.3))], ids=str)
def test_lossy_steps_are_refused(step):
    with pytest.raises(PolicyError, match="is lossy, and only lossless policies were asked for"):
        run(OnlyLossless(Script(Draft("draft", 3), step)))


def test_a_lossy_rule_below_the_target_passes_since_the_target_judges():
    steps = [Draft("draft", 3), Verify("mid", Ratio(0.3)), Verify("target")]
    run(OnlyLossless(Script(*steps, *[Verify("target")] * 12)))


def test_lossless_steps_pass():
    assert check_policy(lambda pool: OnlyLossless(Chain(pool, "draft:3/mid:4/target"))).lossless
