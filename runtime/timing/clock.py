"""Where decoding times its operations, in one place, so that no measurement forgets to wait for the device."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch


class Clock:
    """Seconds since it was made.

    Args:
        devices: those whose pending work a reading waits for.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._devices = tuple({device for device in devices if device.type == "cuda"})
        self._origin_s = 0.0
        self._origin_s = self.now_s()

    def now_s(self) -> float:
        """Seconds since the clock was made, >= 0, with all device work so far done."""
        for device in self._devices:
            torch.cuda.synchronize(device)
        return perf_counter() - self._origin_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of all readings what is done within."""
        before_s = self.now_s()
        try:
            yield
        finally:
            self._origin_s += self.now_s() - before_s
