"""VIA-SD: which steps a block takes, whose word stands in the text, the guard and the budget."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.seen import Start
from paceline.policies import Band, Commit, Draft, Verify, Vouched
from paceline.policies.check import ToyWorld
from paceline.policies.lossy import ViaSD

from ...decoding.script import run
from .watching import POOL, blocks_of, watched


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
