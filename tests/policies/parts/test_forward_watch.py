"""What the load tells of operations becomes seconds by new tokens and held ones."""

from random import Random

import pytest
from paceline.decoding.seen import ServerLoad
from paceline.policies.check import check_pool
from paceline.policies.estimates import ForwardWatch, PerformanceProfiler

TARGET = 4


def after(load, level, *, num_forwards, new_tokens, duration_s, context_tokens=0):
    load.num_forwards[level], load.new_tokens[level] = num_forwards, new_tokens
    load.duration_s[level], load.context_tokens = duration_s, context_tokens


def test_each_operation_is_taken_in_once_and_by_the_forward():
    profiler, load = PerformanceProfiler(check_pool()), ServerLoad(5)
    watch = ForwardWatch(profiler, (1, TARGET))
    watch.look(load)
    assert not profiler.known(1), "nothing has run"
    after(load, 1, num_forwards=4, new_tokens=32, duration_s=0.4)
    after(load, TARGET, num_forwards=1, new_tokens=40, duration_s=2.0)
    after(load, 2, num_forwards=1, new_tokens=9, duration_s=7.0)
    watch.look(load)
    watch.look(load)
    assert profiler.narrowest_s(1, 8) == pytest.approx(0.1)
    assert profiler.narrowest_s(TARGET, 40) == 2.0
    assert not profiler.known(2), "nobody watches it"
    after(load, TARGET, num_forwards=1, new_tokens=40, duration_s=4.0)
    watch.look(load)
    assert profiler.narrowest_s(TARGET, 40) == 3.0, "the mean of two, the first of which counts once"


@pytest.mark.parametrize("curve", [lambda new: 1.0 + 0.02 * new, lambda new: max(1.0, new / 64)])
def test_held_tokens_are_told_from_new_ones_whatever_the_curve(curve):
    profiler, rng = PerformanceProfiler(check_pool()), Random(0)
    for _ in range(400):
        rows = rng.choice((16, 32, 64))
        width, held = rng.choice((1, 2, 4)), rng.randrange(5_000, 20_000)
        profiler.note(TARGET, new_tokens=rows * width, seconds=curve(rows * width) + 1e-4 * held, held_tokens=held)
    for held in (1024, 8192, 65536):
        table = profiler.table(4, num_rows=32, held_tokens=held)[TARGET]
        assert table[[0, 1, 3]] == pytest.approx([curve(32 * width) + 1e-4 * held for width in (1, 2, 4)], rel=0.02)


def test_seconds_that_fall_as_contexts_grow_are_taken_as_level():
    profiler = PerformanceProfiler(check_pool())
    for held in range(1000, 2000, 10):
        profiler.note(TARGET, new_tokens=8, seconds=2.0 - held * 1e-4, held_tokens=held)
    far, near = (profiler.table(1, num_rows=8, held_tokens=held)[TARGET, 0] for held in (10**6, 1024))
    assert far == near
