"""What bounds a replica is refused where it would bound nothing."""

import pytest
from paceline.base.errors import ArgumentError
from paceline.sim.serving.limits import EngineLimits, KvLimits

KV = KvLimits(num_blocks=10)


@pytest.mark.parametrize(
    ("field", "value"), [("num_blocks", 0), ("block_tokens", 0), ("drop_units", -1)], ids=lambda value: str(value)
)
def test_blocks_out_of_range_are_refused(field, value):
    with pytest.raises(ArgumentError, match=rf"`{field}` must be >= \d, got {value}"):
        KvLimits(**({"num_blocks": 1} | {field: value}))


@pytest.mark.parametrize(
    ("field", "value"), [("max_num_seqs", 0), ("token_budget", 0), ("kv", {}), ("max_model_len", {"target": 0})]
)
def test_limits_out_of_range_are_refused(field, value):
    given = {"max_num_seqs": 1, "token_budget": 1, "kv": {"target": KV}} | {field: value}
    with pytest.raises(ArgumentError, match=f"`{field}`"):
        EngineLimits(**given)


def test_blocks_hold_tokens():
    assert KvLimits(num_blocks=3, block_tokens=32).num_tokens == 96
