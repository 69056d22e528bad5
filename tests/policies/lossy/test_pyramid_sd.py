"""PyramidSD: the qualifier gathers, then the target judges; exact at its strictest."""

from paceline.decoding.rules import Fuzzy
from paceline.policies import Draft, Verify
from paceline.policies.about import about_of
from paceline.policies.lossy import PyramidSD

from .watching import POOL, blocks_of, watched


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
