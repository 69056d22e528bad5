"""What a cache that is moved to other memory takes along, and what it leaves behind."""

import pytest
import torch
from paceline.runtime.caches import SLOT_STEP, KVShape, MaskCache, SlotCache

SHAPE = KVShape(num_layers=2, num_heads=1, head_width=2, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("kind", [SlotCache, MaskCache])
class TestMoved:
    def test_what_requests_hold_is_kept(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [5, 9])
        cache._kv.normal_()
        held = {name: cache._kv[:, cache.rows[name], cache.live_slots_of(name)].clone() for name in "ab"}
        cache.reserve(["a", "b", "c"], [SLOT_STEP, 1, 1])
        for name, values in held.items():
            assert torch.equal(cache._kv[:, cache.rows[name], cache.live_slots_of(name)], values)

    def test_what_a_request_left_is_not(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [5, 9])
        cache._kv[:, cache.rows["a"], cache.live_slots_of("a")] = torch.nan
        cache.free("a")
        cache.reserve(["b"], [SLOT_STEP])
        assert cache._kv.isfinite().all()

    def test_memory_that_was_given_back_is_clean_when_it_is_taken_again(self, kind):
        cache = kind(SHAPE)
        cache.place(["a", "b"], [3 * SLOT_STEP, 9])
        cache._kv[:, cache.rows["a"], 4:] = torch.nan
        cache.roll_back("a", 4)
        cache.truncate()
        assert cache.capacity == SLOT_STEP
        cache.free("a")
        cache.place(["b", "c"], [2 * SLOT_STEP, 1])
        assert cache._kv.isfinite().all()
