"""The SimPy process of one device: it runs the loop's operations one after another."""

from collections.abc import Callable, Generator

import simpy

from ..policies.loop import Loop, World


def device_process(
    env: simpy.Environment,
    loop: Loop,
    world: World,
    *,
    on_finished: Callable[[float], None],
    decide_s: float = 0.0,
) -> Generator[simpy.Event, None, None]:
    """Run operations until the loop has no request left.

    Args:
        env: the clock; only `env.now` is read.
        loop: decides what runs.
        world: runs it.
        on_finished: called with the time when requests have finished (they stand in `loop.finished`); may admit more.
        decide_s: seconds the policy costs per step, charged in front of each operation.
    """
    now_s = env.now
    num_charged = 0
    while True:
        op = loop.next_op(now_s)
        now_s += decide_s * (loop.num_asked - num_charged)
        num_charged = loop.num_asked
        if op is not None:
            start_s = now_s
            results = world.execute(op)
            end_s = start_s + results.duration_s
            # An event costs as much as the rest of a step. Nobody can look at the clock before the next scheduled
            # event, so operations that end before it need none of their own.
            if end_s >= env.peek():
                yield env.timeout(end_s - env.now)
            loop.finish(op, results, start_s=start_s, now_s=end_s)
            now_s = end_s
        elif not loop.finished:  # a Commit finishes requests without an operation
            break
        if loop.finished:
            on_finished(now_s)
    if now_s > env.now:
        yield env.timeout(now_s - env.now)
