"""The lossless kin of VIA-SD: draft, slim pass, full pass, and the target's own text."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import Draft, Exact, Ratio, Verify, check_policy
from paceline.policies.fixed import ViaSDLossless

from ...decoding.strategies import pools
from ..lossy.watching import POOL, blocks_of, watched


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
