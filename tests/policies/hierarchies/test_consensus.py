"""Drafts go on while all voters agree, and end at the first objection."""

import pytest
from paceline.policies import Draft, Verify, make_policy
from paceline.policies.check import ToyWorld, check_pool

from ...decoding.script import run


class Watched:
    """Checks every draft and every block against what the voters would write."""

    def __init__(self, policy, voters, world):
        self.policy, self.voters, self.world = policy, voters, world
        self.objections = self.full = self.agreed = 0

    def decide(self, seen):
        step, last = self.policy.decide(seen), seen.last
        if isinstance(step, Draft) and seen.num_pending:
            assert last.step == Verify(self.voters[-1]), "more is drafted after the last vote only"
            assert last.refused_at is None, "and only if nobody objected"
        if step == Verify("target") and seen.num_pending:
            self.look(seen, last)
        return step

    def look(self, seen, last):
        """A block ends by an objection, or full; a token of the first voter that stayed is everybody's."""
        self.objections += last.refused_at is not None
        self.full += last.refused_at is None
        context = [*range(1, 4), *seen.emitted_from(0)]
        endorsed = seen.pool.level(self.voters[-1])
        for token in seen.pending:
            if token.drafter == self.voters[0] and seen.pool.level(token.judge) >= endorsed:
                levels = [seen.pool.level(name) for name in self.voters if not seen.pool.is_model_free(name)]
                assert {self.world.next_token(level, context) for level in levels} == {token.token}
                self.agreed += 1
            context.append(token.token)

    def learn(self, outcome):
        self.policy.learn(outcome)


@pytest.mark.parametrize(
    ("text", "voters"),
    [
        ("consensus", ("draft", "mid")),
        ("consensus,voters=mid@slim,tokens=2,most=6", ("mid", "slim")),
        ("consensus,voters=draft@mid@slim,tokens=1,most=3", ("draft", "mid", "slim")),
        ("consensus,voters=ngram@draft", ("ngram", "draft")),
    ],
)
def test_the_first_objection_ends_a_draft(text, voters):
    world = ToyWorld(check_pool(), ends=0.0, seed=4)
    watch = Watched(make_policy(text, check_pool()), voters, world)
    run(watch, budget=600, world=world)
    assert watch.objections > 20
    assert watch.agreed > 10


def test_with_voters_that_always_agree_a_block_is_full():
    class Alike(ToyWorld):
        def next_token(self, level, context):
            return super().next_token(max(level, 2), context)

    pool = check_pool()
    world = Alike(pool, ends=0.0)
    watch = Watched(make_policy("consensus,tokens=3,most=9", pool), ("draft", "mid"), world)
    run(watch, budget=120, world=world)
    assert watch.objections == 0
    assert watch.full > 5


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("consensus,most=0", r"most must be in \[1, 1,000,000\], got 0"),
        ("consensus,tokens=13", r"tokens must be in \[1, most=12\], got 13"),
        ("consensus,voters=draft", "voters must be two members below the target or more, from smallest to largest"),
        ("consensus,voters=mid@draft", "voters must be two members below the target or more, .* got 'mid@draft'"),
        ("consensus,voters=mid@mid", "voters must be two members below the target or more"),
        ("consensus,voters=mid@target", "voters must be two members below the target or more"),
        ("consensus,voters=mid@nobody", "unknown model 'nobody'"),
    ],
)
def test_options_out_of_range_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        make_policy(text, check_pool())
