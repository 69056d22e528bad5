"""A paused clock leaves out what is done meanwhile, whatever comes of it."""

from time import sleep

from paceline.runtime.timing.clock import Clock


def test_a_pause_is_left_out():
    clock = Clock()
    before_s = clock.now_s()
    with clock.paused():
        sleep(0.2)
    assert 0 <= clock.now_s() - before_s < 0.1


def test_a_pause_that_ends_in_an_error_is_left_out():
    clock = Clock()
    before_s = clock.now_s()
    pause = clock.paused()
    pause.__enter__()
    sleep(0.2)
    assert not pause.__exit__(KeyError, KeyError("a"), None)
    assert clock.now_s() - before_s < 0.1
