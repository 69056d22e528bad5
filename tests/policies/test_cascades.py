"""Chains of several levels that plan, gather or vote, against brute force, a recursion and what voters would say."""

from itertools import accumulate, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.benchmarks.shared.closed_forms import chain_speed
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.policies import Draft, Exact, Member, Pool, Ratio, Verify, check_policy, make_policy
from paceline.policies.about import decides_by_pending
from paceline.policies.cascades import CascadePlanner, Polybasic, seconds_per_token
from paceline.policies.check import ToyWorld, check_pool
from paceline.policies.estimates import MemberSeconds
from paceline.policies.fixed import Chain, ViaSDLossless

from ..decoding.script import run
from ..decoding.strategies import pools
from .making import POOL, Watched, best_window, blocks_of, flat, recording, replayed, seconds_of, seen_of, watched

CHAIN = "draft:2/mid:3/slim:4/target"


def step(waiting, *, has_room=True):
    """What the chain does when so many tokens wait for mid, slim and target."""
    counts = dict(zip(("mid", "slim", "target"), waiting, strict=True))
    seen = seen_of(num_pending=counts["target"], has_room=has_room, waiting=counts.__getitem__)
    return Chain(check_pool(), CHAIN).decide(seen)


@pytest.mark.parametrize(
    ("waiting", "wanted"),
    [
        ((0, 0, 0), Draft("draft", 2)),
        ((1, 1, 1), Verify("mid")),
        ((0, 2, 2), Draft("draft", 2)),
        ((0, 3, 3), Verify("slim")),
        # Nothing waits for slim: it is passed over.
        ((0, 0, 4), Verify("target")),
        ((0, 0, 3), Draft("draft", 2)),
        # Enough wait for the target by its own count, but what slim has not kept yet stops the climb.
        ((0, 2, 4), Draft("draft", 2)),
        ((0, 2, 6), Draft("draft", 2)),
        ((0, 3, 6), Verify("slim")),
    ],
)
def test_a_level_that_is_not_due_stops_the_climb(waiting, wanted):
    assert step(waiting) == wanted


def test_without_room_one_waiting_token_is_enough():
    assert step((0, 1, 5), has_room=False) == Verify("slim")
    assert step((0, 0, 1), has_room=False) == Verify("target")


TWO = Pool((Member(name="draft"), Member(name="target")))
THREE = Pool((Member(name="draft"), Member(name="mid"), Member(name="target")))


def planner(pool, costs, rates, *, most=16):
    made = CascadePlanner(pool, MemberSeconds(pool, costs), most=most, recent=0.3)
    for (drafter, verifier), rate in rates.items():
        made.note(drafter, verifier, round(1000 * rate), 1000)
    made.estimate()
    return made


@pytest.mark.parametrize(("rate", "ratio"), [(0.5, 0.05), (0.8, 0.1), (0.9, 0.3), (0.3, 0.5)])
def test_with_one_drafter_the_plan_is_the_best_window(rate, ratio):
    made = planner(TWO, f"draft:{ratio}/target:1", {("draft", "target"): rate})
    best = best_window(rate, ratio, most=16)
    assert made.plan() == ((Draft("draft", best),) if best else ())


def test_later_tokens_are_left_to_a_cheaper_member():
    made = planner(THREE, "draft:0.01/mid:0.3/target:1", {("draft", "target"): 0.45, ("mid", "target"): 0.95})
    plan = made.plan()
    assert [step.model for step in plan if isinstance(step, Draft)][-1] == "draft"
    assert "mid" in {step.model for step in plan}


def test_a_middle_member_judges_for_the_target_where_costs_are_far_apart():
    rates = {("draft", "target"): 0.6, ("mid", "target"): 0.95, ("draft", "mid"): 0.7}
    plan = planner(THREE, "draft:1/mid:10/target:100", rates).plan()
    assert Verify("mid") in plan


def test_rates_move_by_the_share_of_the_recent_ones():
    made = planner(TWO, "draft:1/target:10", {("draft", "target"): 0.5})
    made.note("draft", "target", 10, 10)
    made.estimate()
    made.estimate()  # nothing new: nothing moves
    assert made._rates["draft", "target"] == pytest.approx(0.7 * 0.5 + 0.3 * 1.0)


def test_no_more_is_pending_than_allowed():
    rates = {("draft", "target"): 0.99, ("mid", "target"): 0.99, ("draft", "mid"): 0.99}
    for most in (1, 3, 8):
        plan = planner(THREE, "draft:0.01/mid:0.02/target:1", rates, most=most).plan()
        assert 1 <= sum(step.tokens for step in plan if isinstance(step, Draft)) <= most


@pytest.mark.parametrize("name", ["cas-spec", "polybasic"])
def test_it_learns_to_be_faster_than_its_warm_up(name):
    tables, cost = recording(0.4, 0.9), flat(draft=0.02, mid=0.1, target=1.0)
    learnt_s, *fixed_s = (
        seconds_of(replayed(tables, cost, make_policy(text, tables.pool)))
        for text in (name, "draft:4/target", "mid:4/target", *["draft:4/mid:6/target"] * (name == "polybasic"))
    )
    assert learnt_s < min(fixed_s)


@settings(max_examples=8)
@given(pool=pools(least=3), seed=st.integers(0, 99), tokens=st.integers(1, 6), escalate=st.floats(0.01, 1.0))
def test_via_sd_lossless_commits_the_trunk_over_any_pool(pool, seed, tokens, escalate):
    build = lambda pool: ViaSDLossless(pool, tokens=tokens, escalate=escalate)  # noqa: E731
    assert check_policy(build, pool=pool, seed=seed).lossless


def test_the_steps_of_via_sd_lossless():
    watch, _ = watched(ViaSDLossless(POOL, tokens=3))
    for draft, cut, end in blocks_of(watch):
        assert draft.step == Draft("draft", 3)
        assert cut.step == Verify("slim", Ratio(0.3))
        assert end.step == Verify("target", Exact())


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


RATES = st.floats(0.05, 0.98)


def theorem(lengths, forward_s, beta):
    """T / N = sum_{i < n} T_i / L_i + beta T_n / L_(n-1), models from the target down."""
    terms = [taken / length for taken, length in zip(forward_s, lengths, strict=False)]
    return sum(terms) + beta * forward_s[-1] / lengths[-1]


def lengths_of(rates, windows):
    """L_i of the levels that judge, from the target down: tokens that stay in the end, by forward."""
    handed = sum(rates[0] ** i for i in range(windows[0] + 1))
    if len(rates) == 1:
        return [handed]
    gathered = max(windows[1], handed)
    kept = (1 - rates[1] ** (gathered + 1)) / (1 - rates[1])
    return [kept, kept * handed / gathered]


def brute_force(rates, costs, most):
    """(seconds per token, notation) of the best of all chains and windows."""
    found = [(costs["target"], "target")]
    for members in (("draft", "target"), ("mid", "target"), ("draft", "mid", "target")):
        pairs = [rates[pair] for pair in pairwise(members)]
        forward_s = [costs[name] for name in reversed(members)]
        for windows in product(range(1, most + 1), repeat=len(pairs)):
            below = "/".join(f"{name}:{window}" for name, window in zip(members, windows, strict=False))
            found.append((theorem(lengths_of(pairs, windows), forward_s, windows[0]), f"{below}/target"))
    return min(found)


def tell(policy, rates):
    """The policy learns of acceptance without a run, and chooses."""
    for pair, rate in rates.items():
        ratio = policy._rates[pair]
        ratio._above, ratio._below = rate, 1.0
    policy._choose()


@given(
    st.tuples(RATES, RATES, RATES),
    st.sampled_from([(1, 3, 6), (1, 10, 50), (1, 1, 4), (1, 30, 300), (5, 6, 7)]),
    st.integers(1, 7),
)
def test_the_choice_is_that_of_brute_force_over_the_theorem(rates, costs, most):
    rates = dict(zip((("draft", "target"), ("mid", "target"), ("draft", "mid")), rates, strict=True))
    costs = dict(zip(THREE.names, costs, strict=True))
    policy = Polybasic(THREE, most=most, costs="/".join(f"{name}:{cost}" for name, cost in costs.items()))
    tell(policy, rates)
    least, _ = brute_force(rates, costs, most)
    members, windows = policy._best.spec.members, policy._best.spec.windows
    pairs = [rates[pair] for pair in pairwise(members)]
    forward_s = [costs[name] for name in reversed(members)]
    chosen = theorem(lengths_of(pairs, windows), forward_s, windows[0]) if windows else costs["target"]
    assert chosen == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("rates", [(0.5, 0.8), (0.9, 0.6), (0.9, 0.95)])
@pytest.mark.parametrize("forward_s", [(1.0, 3.0, 10.0), (1.0, 30.0, 300.0)])
def test_its_windows_take_little_more_than_the_best_of_three_levels(rates, forward_s):
    most, verify_s = 12, np.repeat([forward_s[1:]], 14, axis=0).T
    expected = seconds_per_token(rates, forward_s[0] * np.arange(1.0, most + 1.0), verify_s)
    windows = product(range(1, most + 1), repeat=2)
    exact = np.array([chain_speed(rates, pair, forward_s).seconds_per_token for pair in windows]).reshape(most, most)
    assert exact[np.unravel_index(expected.argmin(), expected.shape)] < 1.05 * exact.min()
    np.testing.assert_allclose(expected[:, 0], exact[:, 0], rtol=0.2)


PROMPT = (1, 2, 3, 1, 2, 4, 1, 2, 3)
BUDGET = 250
LOOKUP = LookupRule(max_match=3)  # that of the toy models


class Noted(Watched):
    """Keeps what the target is given to judge, too."""

    def __init__(self, policy):
        super().__init__(policy)
        self.blocks = []

    def decide(self, seen):
        step = super().decide(seen)
        if step == Verify("target") and seen.room > 40:  # far from the end of the budget
            self.blocks.append([token.token for token in seen.pending])
            levels = [seen.pool.level(token.judge) for token in seen.pending]
            assert levels == sorted(levels, reverse=True), "later tokens are left to smaller members"
        return step


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
def test_the_target_judges_what_the_recursion_hands_it(text, levels, matrix):
    world = ToyWorld(check_pool(), ends=0.0)
    watch = Noted(make_policy(text, check_pool()))
    session = run(watch, prompt=PROMPT, budget=BUDGET, world=world)
    recursion = Recursion(world, levels, matrix)
    context = [*PROMPT, session.emitted[0]]  # the prefill writes the first
    assert len(watch.blocks) > 30
    for block in watch.blocks:
        assert block == recursion.drafted(context)[len(context) :]
        context = recursion.reviewed(context, 0)
    assert context[len(PROMPT) :] == session.emitted[: len(context) - len(PROMPT)]


def test_no_model_writes_more_than_a_token_at_a_time():
    watch = Noted(make_policy("cs-drafting", check_pool()))
    run(watch, prompt=PROMPT, budget=BUDGET)
    drafts = [step for step in watch.steps if isinstance(step, Draft)]
    assert {step.model for step in drafts} >= {"ngram", "draft"}
    assert all(step.tokens == 1 for step in drafts if step.model != "ngram")


def test_a_pool_of_one_drafting_model_has_one_in_the_cascade():
    pool = Pool((Member(name="ngram", model_free=True), Member(name="draft"), Member(name="target")))
    assert make_policy("cs-drafting", pool).most_pending == make_policy("cs-drafting,models=1", pool).most_pending


class Voted:
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
    watch = Voted(make_policy(text, check_pool()), voters, world)
    run(watch, budget=600, world=world)
    assert watch.objections > 20
    assert watch.agreed > 10


def test_with_voters_that_always_agree_a_block_is_full():
    class Alike(ToyWorld):
        def next_token(self, level, context):
            return super().next_token(max(level, 2), context)

    pool = check_pool()
    world = Alike(pool, ends=0.0)
    watch = Voted(make_policy("consensus,tokens=3,most=9", pool), ("draft", "mid"), world)
    run(watch, budget=120, world=world)
    assert watch.objections == 0
    assert watch.full > 5
