"""The clocks of decoding, in one place, so that every measurement waits for the device.

A price list can stand in for the clock, so that a policy that weighs seconds sees the same as in a replay.
`TimedPolicy` measures a policy's own seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Protocol

import torch

from ..decoding.results import Forward, OverlapResults, PartRun, Results, VerifyResults
from ..decoding.seen import Observation
from ..decoding.steps import Outcome, Step
from ..decoding.world import Op
from ..policies.about import WatchedPolicy
from .ranks import Ranks

# A point in a device's work: seconds on a CPU, an event on a GPU.
Mark = float | torch.cuda.Event


class Clock:
    """Seconds since it was made; a reading waits for the pending work of `devices`."""

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
        """Exclude the block's time from all readings."""
        before_s = self.now_s()
        try:
            yield
        finally:
            self._origin_s += self.now_s() - before_s


class SharedClock(Clock):
    """A clock that shows the same in every process: rank 0's, so that policies that use seconds decide alike.

    Every process makes it and reads it in the same order; a reading waits for rank 0.
    """

    def __init__(self, devices: Iterable[torch.device], ranks: Ranks) -> None:
        self._ranks = ranks
        super().__init__(devices)

    def now_s(self) -> float:
        """Seconds since rank 0 made its clock, >= 0."""
        return self._ranks.of_the_first(super().now_s())


def mark(device: torch.device) -> Mark:
    """The current point in a device's work; does not wait."""
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def between_s(first: Mark, last: Mark) -> float:
    """Seconds from one mark to a later one of the same device; waits until the device has reached it."""
    if isinstance(first, float) or isinstance(last, float):
        assert isinstance(first, float)
        assert isinstance(last, float)
        return last - first
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call on the device, after all its work before: by its own events on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = mark(device)
    action()
    return between_s(start, mark(device))


class Prices(Protocol):
    """Seconds of operations as a price list; the simulator's cost models have this shape.

    `context_tokens` is always 0, since it is not counted here: prices must not depend on it.
    """

    lookup_s: float  # of one prompt lookup

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward of `model` over `new_tokens` tokens of `num_rows` requests."""
        ...


class PricedSeconds:
    """A clock that operations alone advance, by their prices; mutated by `priced`. `names` are of members, by level."""

    def __init__(self, prices: Prices, names: Sequence[str]) -> None:
        self._prices = prices
        self._names = names
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the clock was made, >= 0."""
        return self._now_s

    def priced(self, op: Op, results: Results) -> Results:
        """A world's results with the prices of its forwards as seconds; advances the clock by their sum."""
        if isinstance(results, OverlapResults):
            return self._priced_parts(op, results)
        forwards, duration_s = self._run(op, op.level, results.forwards, verifies=isinstance(results, VerifyResults))
        self._now_s += duration_s
        return results._replace(forwards=forwards, duration_s=duration_s)

    def _priced_parts(self, op: Op, results: OverlapResults) -> OverlapResults:
        """As in a replay on one device, one after the other."""
        parts, whole_s = [], 0.0
        for number, (level, part) in enumerate(zip(op.levels, results.parts, strict=True)):
            verifies = not (op.drafts and number == len(op.levels) - 1)
            forwards, duration_s = self._run(op, level, part.forwards, verifies=verifies)
            parts.append(PartRun(whole_s, forwards, duration_s, part.prefixes))
            whole_s += duration_s
        self._now_s += whole_s
        return results._replace(parts=parts, duration_s=whole_s)

    def _run(self, op: Op, level: int, forwards: Sequence[Forward], *, verifies: bool) -> tuple[list[Forward], float]:
        """The forwards of one member with their prices, and the seconds of them together."""
        seconds_of = partial(self._prices.forward_s, self._names[level], context_tokens=0)
        priced = [
            (num_rows, new_tokens, repeats, seconds_of(num_rows=num_rows, new_tokens=new_tokens))
            for num_rows, new_tokens, repeats, _ in forwards
        ]
        if not priced and not verifies:  # a model-free member runs no forward
            return [], self._prices.lookup_s * len(op.items)
        return priced, sum([repeats * seconds for _, _, repeats, seconds in priced])


class TimedPolicy(WatchedPolicy):
    """Forwards calls to a policy, notes its steps, and adds up the `seconds` of its `decide` and `learn`.

    `decisions` counts the steps, and `num_running` is the number of running requests at the last `decide`.

    Not by `Clock`, which waits for devices: that wait is not the policy's. A pending token's signal is computed when
    the policy reads it, and counts.
    """

    seconds = 0.0
    decisions = 0
    num_running = 0

    def decide(self, seen: Observation) -> Step:
        start_s = perf_counter()
        step = self.wrapped.decide(seen)
        self.seconds += perf_counter() - start_s
        self.decisions += 1
        self.num_running = seen.load.num_running
        self.watch.note(step)
        return step

    def learn(self, outcome: Outcome) -> None:
        start_s = perf_counter()
        self.wrapped.learn(outcome)
        self.seconds += perf_counter() - start_s
