"""A paused clock leaves out what is done meanwhile, whatever comes of it."""

import pytest
from paceline.runtime import clock as module
from paceline.runtime.clock import Clock


class Time:
    """Goes on when it is told to."""

    def __init__(self):
        self.now_s = 7.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr(module, "perf_counter", made)
    return made


def test_a_pause_is_left_out(time):
    clock = Clock()
    time.now_s += 1.0
    with clock.paused():
        time.now_s += 64.0
    time.now_s += 2.0
    assert clock.now_s() == 3.0


def test_a_pause_that_ends_in_an_error_is_left_out(time):
    clock = Clock()
    pause = clock.paused()
    pause.__enter__()
    time.now_s += 64.0
    assert not pause.__exit__(KeyError, KeyError("a"), None)
    time.now_s += 2.0
    assert clock.now_s() == 2.0
