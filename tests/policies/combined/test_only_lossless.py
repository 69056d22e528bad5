"""A lossy step is refused at once; all others pass."""

import pytest
from paceline.policies import Commit, Draft, PolicyError, Ratio, Verify, check_policy
from paceline.policies.combined import OnlyLossless
from paceline.policies.fixed import Chain

from ...decoding.script import Script, run


@pytest.mark.parametrize("step", [Commit(1), Verify("target", Ratio(0.3))], ids=str)
def test_lossy_steps_are_refused(step):
    with pytest.raises(PolicyError, match="is lossy, and only lossless policies were asked for"):
        run(OnlyLossless(Script(Draft("draft", 3), step)))


def test_a_lossy_rule_below_the_target_passes_since_the_target_judges():
    steps = [Draft("draft", 3), Verify("mid", Ratio(0.3)), Verify("target")]
    run(OnlyLossless(Script(*steps, *[Verify("target")] * 12)))


def test_lossless_steps_pass():
    assert check_policy(lambda pool: OnlyLossless(Chain(pool, "draft:3/mid:4/target"))).lossless
