"""No oracle decides for real models, whoever asks."""

import pytest
from paceline.policies import make_policy
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.rules import refuse_oracle
from paceline.traces.meta import Sampling

from ..tiny_models import random_prompts, tiny_pool_of_four


@pytest.mark.parametrize("name", ["oracle-window", "oracle-chain"])
def test_oracles_are_refused_by_name(name):
    pool = tiny_pool_of_four()
    policy = make_policy(name, loaded_pool(pool))
    with pytest.raises(ValueError, match=f"^policy {name} sees ahead, which only a recording can grant$"):
        decode(pool, policy, random_prompts(1), sampling=Sampling(mode="greedy"), max_new_tokens=4, name=name)


def test_others_are_not():
    refuse_oracle(make_policy("two-level", loaded_pool(tiny_pool_of_four())), "two-level")
