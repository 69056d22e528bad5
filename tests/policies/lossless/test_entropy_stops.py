"""AdaEDL and SVIP: drafts end where entropy says so, and AdaEDL's threshold follows acceptance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.rules import Signal
from paceline.policies import EntropyAbove, check_policy
from paceline.policies.check import check_pool
from paceline.policies.fixed import Svip
from paceline.policies.windows import AdaEDL

FRESH = type("Seen", (), {"num_pending": 0, "found_nothing": False, "last": None, "request_id": "r7"})()


def judged(accepted, count):
    return type("Outcome", (), {"num_judged": count, "num_accepted": accepted, "done": False})()


@given(st.floats(0.01, 5.0), st.floats(0.0, 1.0), st.floats(0.0, 10.0))
def test_the_draft_ends_where_the_bound_falls_below_the_threshold(gamma, threshold, entropy):
    stop = AdaEDL(check_pool(), gamma=gamma, threshold=threshold).decide(FRESH).stop
    bound = 1.0 - (gamma * entropy) ** 0.5
    if abs(bound - threshold) > 1e-9:
        assert stop.holds(Signal(0.5, entropy, 0.1), 1.0) == (bound < threshold)


def test_the_threshold_rises_under_refusals_and_falls_after_full_acceptance():
    policy = AdaEDL(check_pool(), threshold=0.5, wanted=0.8)
    before = policy.decide(FRESH).stop.nats
    for _ in range(5):
        policy.learn(judged(0, 4))
    assert policy.threshold == pytest.approx(0.5 + 5 * 0.1 * 0.01)
    assert policy.decide(FRESH).stop.nats < before
    for _ in range(20):
        policy.learn(judged(4, 4))
    assert policy.threshold < 0.5
    assert policy.decide(FRESH).stop.nats > before


@pytest.mark.parametrize(("accepted", "end"), [(0, 1.0), (4, 0.0)])
def test_the_threshold_stays_a_share(accepted, end):
    policy = AdaEDL(check_pool(), step=1.0, smooth_threshold=0.0, wanted=0.5)
    for _ in range(9):
        policy.learn(judged(accepted, 4))
    assert policy.threshold == end
    assert policy.decide(FRESH).tokens == 12


def test_without_a_step_the_threshold_is_fixed():
    policy = AdaEDL(check_pool(), step=0.0)
    draft = policy.decide(FRESH)
    policy.learn(judged(0, 4))
    assert policy.decide(FRESH) is draft


def test_svip_drafts_end_at_the_first_token_of_too_much_entropy():
    short = 0

    class Watching(Svip):
        def decide(self, seen):
            nonlocal short
            entropies = [token.signal.entropy for token in seen.pending]
            assert all(entropy <= 0.81 for entropy in entropies[:-1])
            short += len(entropies) in range(1, 6) and entropies[-1] > 0.81
            return super().decide(seen)

    check_policy(lambda pool: Watching(pool, h=0.9, most=6))
    assert short > 10
    assert Svip(check_pool(), h=0.5).decide(FRESH).stop == EntropyAbove(0.25)


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        (AdaEDL, {"gamma": 0.0}, "gamma must be > 0 and finite, got 0.0"),
        (AdaEDL, {"threshold": 1.5}, r"threshold must be in \[0, 1\], got 1.5"),
        (AdaEDL, {"wanted": -0.1}, r"wanted must be in \[0, 1\], got -0.1"),
        (AdaEDL, {"step": 2.0}, r"step must be in \[0, 1\], got 2.0"),
        (AdaEDL, {"smooth_rate": 1.0}, r"smooth_rate must be in \[0, 1\), got 1.0"),
        (AdaEDL, {"smooth_threshold": -1.0}, r"smooth_threshold must be in \[0, 1\), got -1.0"),
        (AdaEDL, {"most": 0}, r"most must be in \[1, 1,000,000\], got 0"),
        (Svip, {"h": 0.0}, "h must be > 0 and finite, got 0.0"),
        (Svip, {"h": float("nan")}, "h must be > 0 and finite, got nan"),
        (Svip, {"draft": "target"}, "draft must be a member below the target"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, rule):
    with pytest.raises(ValueError, match=rule):
        kind(check_pool(), **options)
