"""A request goes over for its rest where the policy is too slow, or refused too often; others go on."""

import numpy as np
import pytest
from paceline.policies import PolicySpecError, make_policy
from paceline.policies.check import check_policy, check_pool
from paceline.policies.combined import PerTurn
from paceline.policies.fixed import Chain

from ..lossless.recordings import flat, recording, replayed, seconds_of

POOL = check_pool()
CHEAP = flat(draft=0.05, target=1.0)


def per_turn(tables, **options):
    return PerTurn(tables.pool, policy=Chain(tables.pool, "draft:4/target"), **options)


def drafted_by_request(log):
    """(steps that drafted, steps) by request."""
    steps = log.steps
    return [
        ((steps["drafted"][steps["request"] == place] > 0).sum(), (steps["request"] == place).sum())
        for place in range(len(log.requests["request_id"]))
    ]


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
    made = []

    def build(pool):
        made.append(PerTurn(pool, policy=Chain(pool, "draft:4/target"), after=1, window=1, least=9.0))
        return made[-1]

    check_policy(build)
    assert all(not policy._open for policy in made)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"by": "luck"}, "by must be acceptance or speed, got 'luck'"),
        ({"by": "acceptance", "costs": "draft:1"}, "costs goes with by=speed, got 'draft:1'"),
        ({"by": "acceptance", "least": 1.5}, r"least must be in \[0, 1\], got 1.5"),
        ({"least": -1.0}, "least must be >= 0 and finite, got -1.0"),
        ({"after": 0}, "after must be >= 1, got 0"),
        ({"after": 5, "window": 4}, "window must be >= 5, got 4"),
    ],
)
def test_options_out_of_range_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        PerTurn(POOL, policy=Chain(POOL, "draft:4/target"), **options)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("per-turn,policy=tree,by=acceptance", "a policy of token trees goes with by=speed, got Tree by acceptance"),
        ("per-turn,policy=pearl(window=3)", "a policy that works ahead cannot be judged by its seconds"),
        ("guarded,policy=per-tag(default=plain,code=pearl(window=3))", "a policy that works ahead cannot be judged"),
    ],
)
def test_what_cannot_be_judged_is_refused(spec, told):
    with pytest.raises(PolicySpecError, match=told):
        make_policy(spec, POOL)


def test_trees_are_judged_by_speed_and_what_works_ahead_by_acceptance():
    make_policy("per-turn,policy=tree", POOL)
    make_policy("per-turn,policy=pearl(window=3),by=acceptance", POOL)
