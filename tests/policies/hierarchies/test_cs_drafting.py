"""CS-Drafting against its recursion, written down as the paper has it, over the same toy models."""

from itertools import accumulate

import pytest
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.policies import Draft, Member, Pool, Verify, make_policy
from paceline.policies.check import ToyWorld, check_pool

from ...decoding.script import run

PROMPT = (1, 2, 3, 1, 2, 4, 1, 2, 3)
BUDGET = 400
LOOKUP = LookupRule(max_match=3)  # that of the toy models


class Watched:
    """Keeps the steps, and what the target is given to judge."""

    def __init__(self, policy):
        self.policy, self.steps, self.blocks = policy, [], []

    def decide(self, seen):
        step = self.policy.decide(seen)
        self.steps.append(step)
        if step == Verify("target") and seen.room > 40:  # far from the end of the budget
            self.blocks.append([token.token for token in seen.pending])
            levels = [seen.pool.level(token.judge) for token in seen.pending]
            assert levels == sorted(levels, reverse=True), "later tokens are left to smaller members"
        return step

    def learn(self, outcome):
        self.policy.learn(outcome)


class Recursion:
    """The iteration of the paper on contexts; `levels` of target, drafters and lookup in this order."""

    def __init__(self, world, levels, matrix):
        self.world, self.levels, self.matrix = world, levels, matrix

    def drafted(self, context, member=0):
        """What an iteration has when its reviewer is due."""
        start, text = len(context), list(context)
        for drafter, upto in enumerate(accumulate(self.matrix[member]), member + 1):
            while len(text) - start < upto:
                if drafter == len(self.levels) - 1:
                    copies = self.matrix[member][-1]
                    text += prompt_lookup(text, num_tokens=copies, rule=LOOKUP)
                    break
                text = self.reviewed(text, drafter)
        return text

    def reviewed(self, context, member):
        """An iteration and its review, of which the reviewer's own token is part; alone it writes one."""
        text = self.drafted(context, member)
        for index in range(len(context), len(text)):
            own = self.world.next_token(self.levels[member], text[:index])
            if own != text[index]:
                return [*text[:index], own]
        return [*text, self.world.next_token(self.levels[member], text)]


@pytest.mark.parametrize(
    ("text", "levels", "matrix"),
    [
        ("cs-drafting", (4, 2, 1, 0), ((5, 14, 10), (1, 10), (10,))),
        ("cs-drafting,models=1", (4, 1, 0), ((13, 10), (10,))),
        ("cs-drafting,middle=slim,first=2,second=3,inner=2,copy=4", (4, 3, 1, 0), ((2, 3, 4), (2, 4), (4,))),
        ("cs-drafting,draft=mid,models=1,first=1,copy=2", (4, 2, 0), ((1, 2), (2,))),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_target_judges_what_the_recursion_hands_it(text, levels, matrix, seed):
    world = ToyWorld(check_pool(), seed=seed, ends=0.0)
    watch = Watched(make_policy(text, check_pool()))
    session = run(watch, prompt=PROMPT, budget=BUDGET, world=world)
    recursion = Recursion(world, levels, matrix)
    context = [*PROMPT, session.emitted[0]]  # the prefill writes the first
    assert len(watch.blocks) > 30
    for block in watch.blocks:
        assert block == recursion.drafted(context)[len(context) :]
        context = recursion.reviewed(context, 0)
    assert context[len(PROMPT) :] == session.emitted[: len(context) - len(PROMPT)]


def test_no_model_writes_more_than_a_token_at_a_time():
    watch = Watched(make_policy("cs-drafting", check_pool()))
    run(watch, prompt=PROMPT, budget=BUDGET)
    drafts = [step for step in watch.steps if isinstance(step, Draft)]
    assert {step.model for step in drafts} >= {"ngram", "draft"}
    assert all(step.tokens == 1 for step in drafts if step.model != "ngram")


def test_a_pool_of_one_drafting_model_has_one_in_the_cascade():
    pool = Pool((Member(name="ngram", model_free=True), Member(name="draft"), Member(name="target")))
    assert make_policy("cs-drafting", pool).most_pending == make_policy("cs-drafting,models=1", pool).most_pending


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cs-drafting,models=3", r"models must be in \[1, 2\], got 3"),
        ("cs-drafting,first=0", r"first must be in \[1, 1,000,000\], got 0"),
        ("cs-drafting,second=0", r"second must be in \[1, 1,000,000\], got 0"),
        ("cs-drafting,inner=0", r"inner must be in \[1, 1,000,000\], got 0"),
        ("cs-drafting,copy=0", r"copy must be in \[1, 1,000,000\], got 0"),
        ("cs-drafting,models=1,middle=mid", "middle is for models=2, got 'mid' with models=1"),
        ("cs-drafting,draft=slim,models=2", "policy cs-drafting needs a verifier between 'slim' and the target"),
        ("cs-drafting,draft=ngram", "policy cs-drafting needs a drafter with probabilities of its own"),
    ],
)
def test_options_out_of_range_are_refused(text, rule):
    with pytest.raises(ValueError, match=rule):
        make_policy(text, check_pool())


def test_it_needs_a_lookup():
    pair = Pool((Member(name="draft"), Member(name="target")))
    with pytest.raises(ValueError, match="policy cs-drafting needs a model-free member in the pool; it has draft"):
        make_policy("cs-drafting", pair)
