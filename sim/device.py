"""The SimPy process of one device, which runs the loop's operations in turn, and the pause of the garbage collector."""

import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import simpy

from ..decoding.loop import Loop
from ..decoding.world import World


def device_process(
    env: simpy.Environment,
    loop: Loop,
    world: World,
    *,
    on_finished: Callable[[float], None],
) -> Generator[simpy.Event, None, None]:
    """Run operations until the loop has no request left.

    Args:
        env: the clock; only `env.now` is read.
        loop: decides what runs.
        world: runs it.
        on_finished: called with the time when requests have finished or failed (they stand in `loop.finished` and
            `loop.failed`, and are taken out here); may admit more.
    """
    now_s, next_event_s = env.now, env.peek()
    while True:
        op = loop.next_op(now_s)
        now_s = loop.load.now_s  # deciding takes time, too
        if loop.finished:  # a Commit finishes requests without an operation
            on_finished(now_s)
            next_event_s = env.peek()
        elif op is None:
            break
        if op is None:
            continue
        start_s = now_s
        results = op.run(world)
        end_s = start_s + results.duration_s
        # An event costs as much as the rest of a step. Nobody can look at the clock before the next scheduled event,
        # so operations that end before it need none of their own.
        if end_s >= next_event_s:
            yield env.timeout(end_s - env.now)
            next_event_s = env.peek()
        loop.finish(op, results, start_s=start_s, now_s=end_s)
        now_s = end_s
        if loop.finished or loop.failed:
            on_finished(now_s)
            next_event_s = env.peek()
    if now_s > env.now:
        yield env.timeout(now_s - env.now)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the cyclic garbage collector, if it runs, for the duration.

    Replay makes no cycles but keeps tens of thousands of small tuples beside the recording's millions of list items;
    walking those again and again takes a third of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
