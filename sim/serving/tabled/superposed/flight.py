"""Beats that follow one another while nobody comes or goes: what each of their operations takes, worked out at once."""

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .....runs.serving.gap_sums import exact_dot
from .slot_times import SlotTimes

MOST_SUM = 2**62  # that numpy adds up


class Flight:
    """What a replica is about to run, or runs: whole beats, and perhaps what is below the target in one more.

    Attributes:
        start_ps: when it begins.
        times: of the beats, one more than `count` if there is one.
        ends_ps: when each beat ends.
        count: whole beats.
        stops_below: whether it ends where the target's step in the beat after these begins.
    """

    __slots__ = ("count", "ends_ps", "start_ps", "stops_below", "times")

    def __init__(self, start_ps: int, times: SlotTimes, count: int, *, stops_below: bool) -> None:
        self.start_ps = start_ps
        self.times = times
        self.ends_ps = list(accumulate(times.beats_ps(times.count), initial=start_ps))
        del self.ends_ps[0]
        self.count = count
        self.stops_below = stops_below

    @property
    def end_ps(self) -> int:
        """When all of it has run."""
        if self.stops_below:
            return self.below_ps(self.count)
        return self.ends_ps[self.count - 1]

    def drop(self, count: int) -> None:
        """Leave out the first so many beats."""
        self.start_ps = self.ends_ps[count - 1]
        self.times.drop(count)
        del self.ends_ps[:count]
        self.count -= count

    def below_ps(self, place: int) -> int:
        """When the operations below the target are over in a beat."""
        return self.ends_ps[place] - self.times.slots_ps[-1][place]


def block_ps(blocks: NDArray[np.int64], lasted_ps: NDArray[np.int64]) -> int:
    """The sum of products of blocks, which never become fewer, and of the picoseconds that they were held."""
    if int(blocks[-1, -1]) * int(lasted_ps.sum()) < MOST_SUM:
        return int(np.vdot(blocks, lasted_ps))
    return exact_dot(blocks.ravel(), lasted_ps.ravel())
