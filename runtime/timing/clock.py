"""Where decoding times its operations, in one place, so that no measurement forgets to wait for the device."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

from ..ranks.ranks import Ranks

# A place in what a device has to do: seconds on a CPU, an event on a GPU.
Mark = float | torch.cuda.Event


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


class SharedClock(Clock):
    """A clock that shows the same in every process: rank 0's, so that policies that look at seconds decide alike.

    Every process makes it and reads it in the same order; a reading waits for rank 0.

    Args:
        devices: as of `Clock`.
        ranks: the processes.
    """

    def __init__(self, devices: Iterable[torch.device], ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(devices)

    def now_s(self) -> float:
        """Seconds since rank 0 made its clock, >= 0."""
        return self._ranks.of_the_first(super().now_s())


def mark(device: torch.device) -> Mark:
    """This place in the work of a device; waits for nothing."""
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def between_s(first: Mark, last: Mark) -> float:
    """Seconds from one mark to a later one of the same device; waits until it has come there."""
    if isinstance(first, float) or isinstance(last, float):
        assert isinstance(first, float)
        assert isinstance(last, float)
        return last - first
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
