"""Interrupts that wait: the first is heard by whoever looks, the second ends whatever runs."""

import os
import signal
from threading import Thread

import pytest
from paceline.base.terminal import held_interrupts


def test_the_first_is_heard_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with held_interrupts() as interrupts:
        assert not interrupts.heard()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.heard()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_hear_nothing():
    heard = []

    def look():
        with held_interrupts() as interrupts:
            heard.append(interrupts.heard())

    thread = Thread(target=look)
    thread.start()
    thread.join()
    assert heard == [False]
