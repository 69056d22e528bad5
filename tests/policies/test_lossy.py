"""Policies that may leave the target's text: the contract, their rules and budgets, and where they become lossless."""

from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import Deferral, Ensemble, Equilibrium, Fuzzy, Typical
from paceline.decoding.seen import Start
from paceline.policies import Band, Commit, Draft, EntropyAbove, Verify, Vouched, check_policy, make_policy
from paceline.policies.about import Observable, about_of
from paceline.policies.check import EOS, ToyWorld
from paceline.policies.lossy import DivergenceBudget, EarlyCommit, EntropyPatch, PyramidSD, ViaSD, repeated_share
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.sim.recorded import recorded_pool
from paceline.traces.meta import Sampling

from ..decoding.script import run
from ..sim.serving.engine.served_runs import pico
from ..tiny_models import random_prompts, tiny_pool_of_four
from .making import POOL, blocks_of, flat, replayed, watched

TEXTS = """
via-sd via-sd,draft=mid,tokens=1,accept=1.0,escalate=0.99 via-sd,draft=ngram,slim=draft,escalate=0 via-sd,guard=0.2
via-sd,budget=20 via-sd,budget=1000,guard=1.0,tokens=9 cascade cascade,draft=ngram,eps=1.0 cascade,rule=chow,eps=0.5
cascade,rule=diff,draft=slim cascade,rule=opt,tokens=1 pyramid-sd pyramid-sd,tau_q=1.0,tau_t=1.0,tokens=1,gather=9
early-commit early-commit,high=0.2,middle=0.1,low=0,draft=mid entropy-patch entropy-patch,theta=2.5,most=3,draft=slim
typical typical,draft=ngram,tokens=1,eps=1.0,delta=0.05 equilibrium
equilibrium,generator=9,discriminator=0.05,eta=0.1,rounds=1 ensemble ensemble,weight=0.1,draft=mid,tokens=2
"""
# Where the formula says that nothing but the target's own tokens is kept.
STRICTEST = """
cascade,eps=0 cascade,rule=chow,eps=0 pyramid-sd,tau_q=1.0,tau_t=0 pyramid-sd,tau_q=0.5,tau_t=0,tokens=2,gather=7
early-commit,high=1.0,middle=1.0,low=1.0 entropy-patch,theta=0,most=1 via-sd-lossless
via-sd-lossless,escalate=1.0,tokens=2,slim=mid via-sd-lossless,draft=ngram,slim=draft
"""


@pytest.mark.parametrize("text", TEXTS.split())
def test_lossy_policies_keep_the_contract(text):
    report = check_policy(lambda pool: make_policy(text, pool), name=text)
    assert report.num_tokens >= report.num_requests
    assert not about_of(make_policy(text, POOL)).lossless


@pytest.mark.parametrize("text", STRICTEST.split())
def test_the_strictest_settings_commit_the_trunk(text):
    assert check_policy(lambda pool: make_policy(text, pool), name=text, seed=1).lossless


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cascade", Deferral("token", 0.2)),
        ("cascade,rule=opt,eps=0.5", Deferral("opt", 0.5)),
        ("equilibrium,rounds=3", Equilibrium(rounds=3)),
        ("ensemble,weight=0.3", Ensemble(0.3)),
        ("typical", Typical(0.09, 0.3)),
    ],
)
def test_two_level_policies_judge_every_draft_by_their_rule(text, rule):
    watch, _ = watched(make_policy(text, POOL))
    for draft, end in blocks_of(watch):
        assert draft.step == Draft("draft", 5)
        assert end.step == Verify("target", rule)


def test_what_they_have_to_see():
    assert Observable.text in about_of(make_policy("via-sd,guard=0.5", POOL)).observes
    assert Observable.text not in about_of(make_policy("via-sd", POOL)).observes
    assert Observable.distances in about_of(make_policy("cascade,rule=opt", POOL)).observes


def test_an_end_of_text_inside_a_block_ends_the_request():
    for text in TEXTS.split():
        session = run(make_policy(text, POOL), budget=60, world=ToyWorld(POOL, ends=0.3, seed=5))
        assert session.emitted.index(EOS) == len(session.emitted) - 1


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
        session = run(policy, budget=120, world=Loops(POOL), start=Start.draft)
        runs, last = [0], None
        for token in session.emitted:
            runs.append(runs[-1] + 1 if token == last else 1)
            last = token
        return max(runs), Counter(session.emitted)[7]

    assert longest_run(ViaSD(POOL)) == (120, 120)
    longest, sevens = longest_run(ViaSD(POOL, guard=0.5))
    assert longest < 40
    assert sevens < 80


@pytest.mark.parametrize("per_thousand", [20.0, 60.0])
def test_it_holds_a_budget_on_toy_models(per_thousand):
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


@pytest.mark.parametrize(("per_thousand", "floor"), [(20.0, 0.05), (50.0, 0.02), (100.0, 0.3), (300.0, 0.4)])
def test_it_settles_where_the_rate_is_the_budget(per_thousand, floor):
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


def test_strictness_stays_in_its_range():
    control = DivergenceBudget(1000.0)
    control.note_check(100, 100, 0)
    assert control.strictness == 0.0
    tight = DivergenceBudget(0.001)
    for _ in range(100):
        tight.note_check(1, 1, 1)
    assert tight.share <= 1.0
    assert tight.strictness <= 2.0


@pytest.mark.parametrize("per_thousand", [0.0, -1.0, 1000.5, float("nan")])
def test_a_budget_out_of_range(per_thousand):
    with pytest.raises(ValueError, match=r"budget must be in \(0, 1000\] divergences per 1,000 tokens"):
        DivergenceBudget(per_thousand)


@pytest.mark.parametrize(
    ("tokens", "order", "share"),
    [([], 3, 0.0), ([1, 1, 1], 3, 0.0), ([1, 1, 1, 1], 3, 0.5), ([1, 2, 1, 2, 1, 2], 2, 0.6), ([1, 2, 3, 4], 1, 0.0)],
)
def test_how_much_a_text_repeats_itself(tokens, order, share):
    assert repeated_share(tokens, order) == pytest.approx(share)


@pytest.mark.parametrize("repeated", [3, 6, 7, 23])
def test_a_share_of_repeated_trigrams_is_met_by_just_as_many(repeated):
    """Three of thirty are a tenth, by the float that `guard=0.1` is."""
    circle = [*range(30 - repeated), *range(repeated + 2)] if repeated < 20 else [*range(30 - repeated)] * 5
    assert repeated_share(circle[:32], 3) == repeated / 30


PROMPTS = random_prompts(12, seed=5)


def written(text):
    """(prompt ids, answer ids) of every prompt, by the tiny models."""
    pool = tiny_pool_of_four()
    policy = make_policy(text, loaded_pool(pool))
    outputs, _ = decode(pool, policy, PROMPTS, sampling=Sampling(mode="greedy"), max_new_tokens=24, name="typical")
    prompts = {prompt.request_id: pool.tokenizer.encode(prompt.text).ids for prompt in PROMPTS}
    return [(prompts[output.request_id], list(output.tokens)) for output in outputs]


@pytest.mark.parametrize(("eps", "delta"), [(0.09, 0.3), (0.5, 0.7)])
def test_no_token_of_the_text_is_below_the_threshold(eps, delta):
    target = tiny_pool_of_four().members[-1].model
    kept = others = 0
    for prompt, answer in written(f"typical,tokens=3,eps={eps},delta={delta}"):
        with torch.inference_mode():
            logits = target(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        log_probs = torch.log_softmax(logits.double(), dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        threshold = torch.minimum(torch.full_like(entropy, eps), delta * torch.exp(-entropy))
        for index, token in enumerate(answer):
            own = int(log_probs[index].argmax()) == token
            assert own or log_probs[index, token].exp() > threshold[index] * (1 - 1e-6)
            kept += own
            others += not own
    assert kept > 30
    assert others > 3, "it is lossy"


def test_the_lower_the_threshold_the_more_is_kept():
    tables, cost = pico(), flat(ngram=1e-6, draft=0.1, mid=0.3, slim=0.5, target=1.0)
    texts = ["draft:5/target", "typical,eps=0.5,delta=0.9", "typical", "typical,eps=0.01,delta=0.1"]
    kept = []
    for text in texts:
        steps = replayed(tables, cost, make_policy(text, recorded_pool(tables.trace))).steps
        kept.append(steps["accepted"].sum() / steps["judged"].sum())
    assert kept == sorted(kept)
    assert kept[0] < 0.9 * kept[1]


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
