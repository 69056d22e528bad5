"""Policies that may leave the target's text: which steps they take, in what order, and where they become lossless."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.policies import (
    Band,
    Commit,
    Draft,
    EntropyAbove,
    Exact,
    Member,
    Pool,
    Ratio,
    Verify,
    Vouched,
    check_policy,
    make_policy,
)
from paceline.policies.about import Observable, about_of
from paceline.policies.check import check_pool
from paceline.policies.lossless.via_sd_lossless import ViaSDLossless
from paceline.policies.lossy.early_commit import EarlyCommit
from paceline.policies.lossy.entropy_patch import EntropyPatch
from paceline.policies.lossy.pyramid_sd import PyramidSD
from paceline.policies.lossy.via_sd import ViaSD
from paceline.policies.parts.divergence_budget import DivergenceBudget
from paceline.policies.parts.repetition import repeated_share
from paceline.policies.rules import Deferral, Equilibrium, Fuzzy
from paceline.policies.toy_world import EOS, ToyWorld

from .script import run
from .strategies import pools

POOL = check_pool()
TEXTS = (
    "via-sd",
    "via-sd,draft=mid,tokens=1,accept=1.0,escalate=0.99",
    "via-sd,draft=ngram,slim=draft,escalate=0",
    "via-sd,guard=0.2",
    "via-sd,budget=20",
    "via-sd,budget=1000,guard=1.0,tokens=9",
    "cascade",
    "cascade,draft=ngram,eps=1.0",
    "cascade,rule=chow,eps=0.5",
    "cascade,rule=diff,draft=slim",
    "cascade,rule=opt,tokens=1",
    "pyramid-sd",
    "pyramid-sd,tau_q=1.0,tau_t=1.0,tokens=1,gather=9",
    "early-commit",
    "early-commit,high=0.2,middle=0.1,low=0,draft=mid",
    "entropy-patch",
    "entropy-patch,theta=2.5,most=3,draft=slim",
    "equilibrium",
    "equilibrium,generator=9,discriminator=0.05,eta=0.1,rounds=1",
)
# Where the formula says that nothing but the target's own tokens is kept.
STRICTEST = (
    "cascade,eps=0",
    "cascade,rule=chow,eps=0",
    "pyramid-sd,tau_q=1.0,tau_t=0",
    "pyramid-sd,tau_q=0.5,tau_t=0,tokens=2,gather=7",
    "early-commit,high=1.0,middle=1.0,low=1.0",
    "entropy-patch,theta=0,most=1",
    "via-sd-lossless",
    "via-sd-lossless,escalate=1.0,tokens=2,slim=mid",
    "via-sd-lossless,draft=ngram,slim=draft",
)


class Watched:
    """Keeps every step of a policy with what came of it, and the text it saw before."""

    def __init__(self, policy):
        self.policy, self.steps, self.outcomes = policy, [], []

    def decide(self, seen):
        step = self.policy.decide(seen)
        self.steps.append(step)
        return step

    def learn(self, outcome):
        self.outcomes.append(outcome)
        self.policy.learn(outcome)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_lossy_policies_keep_the_contract(text, seed):
    report = check_policy(lambda pool: make_policy(text, pool), name=text, seed=seed)
    assert report.num_tokens >= report.num_requests
    assert not about_of(make_policy(text, POOL)).lossless


@pytest.mark.parametrize("text", STRICTEST)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_strictest_settings_commit_the_trunk(text, seed):
    assert check_policy(lambda pool: make_policy(text, pool), name=text, seed=seed).lossless


def watched(policy, *, budget=60, **world):
    watch = Watched(policy)
    session = run(watch, budget=budget, world=ToyWorld(POOL, **world))
    return watch, session


def blocks_of(watch):
    """The outcomes of a request, cut behind every step that committed something."""
    blocks, block = [], []
    for outcome in watch.outcomes:
        block.append(outcome)
        if outcome.num_emitted:
            blocks.append(block)
            block = []
    return blocks


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    tokens=st.integers(1, 6),
    accept=st.floats(0.05, 1.0),
    share=st.floats(0.0, 0.99),
    budget=st.sampled_from([None, 30.0]),
)
def test_a_block_of_via_sd(seed, tokens, accept, share, budget):
    """Draft, one slim pass, at most one full pass: if something was escalated, or to hold the budget."""
    policy = ViaSD(POOL, tokens=tokens, accept=accept, escalate=share * accept, budget=budget)
    watch, _ = watched(policy, seed=seed, ends=0.02)
    for draft, slim, end in blocks_of(watch):
        assert draft.step == Draft("draft", tokens)
        assert slim.step.model == "slim"
        assert slim.num_judged == draft.num_drafted
        match end.step:
            case Commit():
                assert not slim.num_escalated
                assert end.step.tokens == slim.num_accepted + slim.num_own == end.num_emitted
            case Verify(model="target", rule=Vouched(level=level)):
                assert POOL.names[level] == "slim"
                assert slim.num_escalated
                assert end.num_judged == slim.num_accepted + slim.num_own
            case _:
                assert end.step == Verify("target")
                assert budget is not None
        if budget is None:
            assert slim.step.rule == Band(accept, share * accept)


def test_via_sd_that_escalates_nothing_never_calls_the_target():
    watch, session = watched(ViaSD(POOL, accept=0.01, escalate=0.0))
    assert all(not isinstance(step, Verify) or step.model == "slim" for step in watch.steps)
    assert len(session.emitted) == 60


def test_the_strictest_via_sd_keeps_only_what_the_slim_verifier_puts_first():
    _, session = watched(ViaSD(POOL, accept=1.0, escalate=0.0), ends=0.0)
    world = ToyWorld(POOL, ends=0.0)
    text = list(session.prompt)
    for token in session.emitted:
        assert token == world.next_token(POOL.level("slim"), text)
        text.append(token)


def test_what_is_escalated_is_judged_by_the_target():
    """Every committed token is the slim verifier's accepted word, its own token, or the target's."""
    _, session = watched(ViaSD(POOL, accept=1.0, escalate=0.999999), ends=0.0)
    world = ToyWorld(POOL, ends=0.0)
    text = list(session.prompt)
    by_target = 0
    for token in session.emitted:
        slim, target = (world.next_token(POOL.level(name), text) for name in ("slim", "target"))
        assert token in {slim, target}
        by_target += token != slim
        text.append(token)
    assert by_target > 0


class Loops(ToyWorld):
    """Two small members that repeat themselves and believe each other; the target would not."""

    def next_token(self, level, context):
        if level == self._pool.target_level:
            return 1 + len(context) % 39
        return 7


def test_the_guard_ends_repetition():
    def longest_run(policy):
        session = run(policy, budget=120, world=Loops(POOL))
        runs, last = [0], None
        for token in session.emitted:
            runs.append(runs[-1] + 1 if token == last else 1)
            last = token
        return max(runs), Counter(session.emitted)[7]

    assert longest_run(ViaSD(POOL)) == (120, 120)
    longest, sevens = longest_run(ViaSD(POOL, guard=0.5))
    assert longest < 40
    assert sevens < 80


@pytest.mark.parametrize(
    ("tokens", "order", "share"),
    [([], 3, 0.0), ([1, 1, 1], 3, 0.0), ([1, 1, 1, 1], 3, 0.5), ([1, 2, 1, 2, 1, 2], 2, 0.6), ([1, 2, 3, 4], 1, 0.0)],
)
def test_how_much_a_text_repeats_itself(tokens, order, share):
    assert repeated_share(tokens, order) == pytest.approx(share)


class TestBudget:
    @pytest.mark.parametrize(("per_thousand", "floor"), [(20.0, 0.05), (50.0, 0.02), (100.0, 0.3), (300.0, 0.4)])
    def test_it_settles_where_the_rate_is_the_budget(self, per_thousand, floor):
        """Blocks of five tokens; thresholds at their strictest leave `floor` divergences a token, the laxest 0.5."""
        rng = Random(3)
        control = DivergenceBudget(per_thousand)
        divergences = tokens = 0
        for block in range(40_000):
            rate = floor + max(0.5 - floor, 0.0) * (1.0 - min(control.strictness, 1.0))
            found = [rng.random() < rate for _ in range(5)]
            if control.is_due():
                end = found.index(True) + 1 if True in found else 5
                control.note_check(5, end, int(True in found))
                found = [False] * end
            if block >= 5000:
                divergences += sum(found)
                tokens += len(found)
        assert 1000 * divergences / tokens == pytest.approx(per_thousand, rel=0.25)

    def test_strictness_stays_in_its_range(self):
        control = DivergenceBudget(1000.0)
        control.note_check(100, 100, 0)
        assert control.strictness == 0.0
        tight = DivergenceBudget(0.001)
        for _ in range(100):
            tight.note_check(1, 1, 1)
        assert tight.share <= 1.0
        assert tight.strictness <= 2.0

    @pytest.mark.parametrize("per_thousand", [0.0, -1.0, 1000.5, float("nan")])
    def test_a_budget_out_of_range(self, per_thousand):
        with pytest.raises(ValueError, match=r"budget must be in \(0, 1000\] divergences per 1,000 tokens"):
            DivergenceBudget(per_thousand)

    @pytest.mark.parametrize("per_thousand", [20.0, 60.0])
    def test_via_sd_holds_it_on_toy_models(self, per_thousand):
        """There the slim verifier errs in a fifth of its tokens, so checks have to do most of it.

        The target's own tokens, which never diverge, are not counted by the controller: the rate comes out below.
        """
        policy, divergences, tokens = ViaSD(POOL, budget=per_thousand), 0, 0
        for seed in range(60):
            world = ToyWorld(POOL, seed=seed, ends=0.0)
            session = run(policy, budget=100, world=world)
            if seed < 20:
                continue
            text = list(session.prompt)
            for token in session.emitted:
                divergences += token != world.next_token(POOL.target_level, text)
                text.append(token)
            tokens += 100
        assert 0.25 * per_thousand < 1000 * divergences / tokens < 1.25 * per_thousand


@settings(max_examples=30, deadline=None)
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
    ("text", "rule"),
    [
        ("cascade", Deferral("token", 0.2)),
        ("cascade,rule=opt,eps=0.5", Deferral("opt", 0.5)),
        ("equilibrium,rounds=3", Equilibrium(rounds=3)),
    ],
)
def test_two_level_policies_judge_every_draft_by_their_rule(text, rule):
    watch, _ = watched(make_policy(text, POOL))
    for draft, end in blocks_of(watch):
        assert draft.step == Draft("draft", 5)
        assert end.step == Verify("target", rule)


def test_the_steps_of_pyramid_sd():
    watch, _ = watched(PyramidSD(POOL, tokens=2, gather=4))
    for *rounds, end in blocks_of(watch):
        assert end.step == Verify("target", Fuzzy(0.2))
        assert [outcome.step for outcome in rounds] == [Draft("draft", 2), Verify("slim", Fuzzy(0.4))] * (
            len(rounds) // 2
        )
        assert end.num_judged >= 4 or end.done
    assert about_of(PyramidSD(POOL, tau_t=0.0)).lossless
    assert not about_of(PyramidSD(POOL)).lossless


def test_early_commit_relaxes_as_the_answer_advances():
    seen_thresholds = set()

    class Watching(EarlyCommit):
        def decide(self, seen):
            step = super().decide(seen)
            if seen.num_pending:
                done = seen.num_emitted / (seen.num_emitted + seen.remaining)
                asked = 0.5 if done < 1 / 3 else 0.3 if done < 2 / 3 else 0.1
                sure = min(token.signal.gap for token in seen.pending) >= asked
                assert step == (Commit(seen.num_pending) if sure else Verify("target"))
                seen_thresholds.add((asked, sure))
            return step

    for seed in range(6):
        run(Watching(POOL, tokens=2, high=0.5, middle=0.3, low=0.1), budget=60, world=ToyWorld(POOL, seed=seed))
    assert len(seen_thresholds) == 6


def test_the_target_judges_the_boundaries_of_patches_only():
    boundaries = 0

    class Watching(EntropyPatch):
        def decide(self, seen):
            nonlocal boundaries
            step = super().decide(seen)
            if seen.num_pending:
                surprising = [token.signal.entropy > 1.0 for token in seen.pending]
                assert not any(surprising[:-1])
                if step == Verify("target"):
                    assert surprising == [True]
                    boundaries += 1
                else:
                    assert step == Commit(len(surprising) - surprising[-1])
            else:
                assert step == Draft("draft", 4, EntropyAbove(1.0))
            return step

    for ends in (0.0, 0.2):
        check_policy(lambda pool: Watching(pool, theta=1.0, most=4), name="patch", seed=int(10 * ends))
    assert boundaries > 50


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("via-sd,accept=0.3", r"escalate must be in \[0, accept=0.3\), got 0.3"),
        ("via-sd,accept=1.2", r"accept must be in \(0, 1\], got 1.2"),
        ("via-sd,tokens=0", "draft tokens must be >= 1, got 0"),
        ("via-sd,guard=0", r"guard must be in \(0, 1\], got 0.0"),
        ("via-sd,budget=0", r"budget must be in \(0, 1000\] divergences per 1,000 tokens, got 0.0"),
        ("via-sd,slim=target", "policy via-sd needs a verifier between 'draft' and 'target', got 'target'"),
        ("via-sd,slim=draft", "policy via-sd needs a verifier between 'draft' and 'target', got 'draft'"),
        (
            "via-sd,draft=slim",
            "policy via-sd needs a verifier between 'slim' and the target; the pool has ngram, draft",
        ),
        ("via-sd,slim=nobody", "unknown model 'nobody'"),
        ("via-sd-lossless,escalate=0", r"theta must be in \(0, 1\], got 0.0"),
        ("via-sd-lossless,draft=slim", "policy via-sd-lossless needs a verifier between 'slim' and the target"),
        ("cascade,rule=best", "kind must be one of chow, diff, opt, token, got 'best'"),
        ("cascade,eps=1.5", r"eps must be in \[0, 1\], got 1.5"),
        ("cascade,rule=chow,draft=ngram", "policy cascade,rule=chow needs a drafter with probabilities of its own"),
        ("cascade,draft=target", "draft must be a member below the target, got 'target'"),
        ("pyramid-sd,gather=0", "gather must be >= 1, got 0"),
        ("pyramid-sd,tau_q=2", r"tau_q must be in \[0, 1\], got 2.0"),
        ("pyramid-sd,tau_t=-1", r"tau_t must be in \[0, 1\], got -1.0"),
        ("pyramid-sd,draft=ngram", "policy pyramid-sd needs a drafter with probabilities of its own, 'ngram' has none"),
        ("early-commit,low=0.85", "thresholds must fall: 0 <= low <= middle <= high <= 1, got low=0.85, middle=0.8"),
        ("early-commit,high=0.95,middle=0.99", "thresholds must fall"),
        ("early-commit,draft=ngram", "policy early-commit needs a drafter with probabilities of its own"),
        ("entropy-patch,theta=-1", r"nats must be in \[0, inf\], got -1.0"),
        ("entropy-patch,most=0", "draft tokens must be >= 1, got 0"),
        ("equilibrium,eta=0", "eta must be > 0 and finite, got 0.0"),
        ("equilibrium,draft=ngram", "policy equilibrium needs a drafter with probabilities of its own"),
    ],
)
def test_bad_options_are_one_line(text, rule):
    with pytest.raises(ValueError, match=rule) as caught:
        make_policy(text, POOL)
    assert "\n" not in str(caught.value)


def test_a_pool_without_the_member_is_refused():
    alone = Pool((Member(name="target"),))
    pair = Pool((Member(name="draft"), Member(name="target")))
    foreign = Pool((Member(name="draft", drafts_only=True), Member(name="target")))
    for name in ("via-sd", "via-sd-lossless", "pyramid-sd"):
        with pytest.raises(ValueError, match=f"policy {name} needs a verifier between 'draft' and the target"):
            make_policy(name, pair)
    for name in ("early-commit", "entropy-patch", "equilibrium", "pyramid-sd"):
        for pool in (alone, foreign):
            with pytest.raises(ValueError, match=f"policy {name} needs a model below the target"):
                make_policy(name, pool)
    middle = Pool((Member(name="draft"), Member(name="mid", drafts_only=True), Member(name="target")))
    with pytest.raises(ValueError, match="policy via-sd needs a middle member that can verify, 'mid' cannot"):
        make_policy("via-sd,slim=mid", middle)


def test_what_they_have_to_see():
    assert Observable.text in about_of(make_policy("via-sd,guard=0.5", POOL)).observes
    assert Observable.text not in about_of(make_policy("via-sd", POOL)).observes
    assert Observable.distances in about_of(make_policy("cascade,rule=opt", POOL)).observes


def test_an_end_of_text_inside_a_block_ends_the_request():
    for text in TEXTS:
        session = run(make_policy(text, POOL), budget=60, world=ToyWorld(POOL, ends=0.3, seed=5))
        assert EOS not in session.emitted[:-1]
