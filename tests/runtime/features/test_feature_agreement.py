"""Both worlds take the same steps with a drafter from the target's states."""

import pytest
from paceline.runtime.pools.pool import ModelPool
from paceline.studies.agree import agree
from paceline.traces.meta import Sampling

from .feature_pools import written

PROMPTS = [f"w{token} w{token + 3} w{2 * token}" for token in range(1, 6)]
CHAINS = (
    "feature:4/target",
    "feature:2/mid:3/target",
    "ngram:3/feature:4/target",
    "feature:3/slim:2/target",
    "feature:2/mid:3/slim:4/target",
    "svip,most=5",
    "adaptive",
    "specrouter",
    "via-sd-lossless",
)
COUPLED = Sampling(mode="coupled", temperature=0.8, seed=5)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return ModelPool.load(written(tmp_path_factory.mktemp("pool"), members=("ngram", "mid", "slim", "target")))


@pytest.mark.parametrize(("batch", "cache"), [(1, "slots"), (4, "mask")])
@pytest.mark.parametrize("sampling", [None, COUPLED])
def test_both_worlds_take_the_same_steps(pool, sampling, batch, cache):
    found = agree(pool, PROMPTS, CHAINS, sampling=sampling, max_new_tokens=20, batch=batch, cache=cache)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    for one in found.policies:
        assert one.left is None
        assert one.num_steps > 20
