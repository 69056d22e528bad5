from time import perf_counter

import pytest
import torch
from paceline.runtime.timing import hardware, measure_costs, timed


def test_every_model_and_point_is_timed(tiny_pool):
    costs = measure_costs(tiny_pool, new_tokens=(1, 17, 32, 64, 256), repeats=3)
    assert list(costs) == ["draft", "mid", "slim", "target"]
    for table in costs.values():
        assert table.new_tokens == (1, 17, 32, 64, 256)
        assert min(table.seconds) > 0


def test_a_point_is_a_forward_of_that_many_tokens(tiny_pool, monkeypatch):
    sizes = []

    def watched(pool, level, kind, *, share_weights):
        forward = choose(pool, level, kind, share_weights=share_weights)
        if level != len(pool.members) - 1:
            return forward

        class Watched:
            kv_shape, slot_cache = forward.kv_shape, forward.slot_cache

            def __call__(self, ids, placement, cache, keep):
                sizes.append((len(placement.counts), placement.longest))
                return forward(ids, placement, cache, keep)

        return Watched()

    choose = type(tiny_pool).forward
    monkeypatch.setattr(type(tiny_pool), "forward", watched)
    measure_costs(tiny_pool, new_tokens=(3, 32, 48), repeats=2)
    # Contexts are filled with rows of 64: what the pool's 96 leave beside a row of 32.
    # Every round of a model begins with its smallest point, untimed.
    small, batched = [(1, 64)] * 2 + [(1, 3), (1, 3), (1, 32)] * 3, [(1, 64)] * 3 + [(3, 16), (3, 16)] * 3
    assert sizes == small + batched


def test_what_cannot_be_measured_is_refused(tiny_pool):
    with pytest.raises(ValueError, match="new_tokens above 32 must be multiples of 16, got 40"):
        measure_costs(tiny_pool, new_tokens=(1, 40))
    with pytest.raises(ValueError, match="repeats must be >= 1, got 0"):
        measure_costs(tiny_pool, repeats=0)


def test_time_is_that_of_the_call():
    calls = []
    began_s = perf_counter()
    assert 0 <= timed(lambda: calls.append(1), torch.device("cpu")) <= perf_counter() - began_s
    assert calls == [1]


def test_the_machine_in_words():
    assert hardware().endswith(("cores, 1 thread", "1 core, 1 thread"))
