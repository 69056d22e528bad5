"""Seconds of one forward of each model of a pool, on the device it is loaded on.

A point is a number of new tokens, all rows together. Up to 32 they are one row; more are rows of 16, as batched
verification has them. Every row stands after up to 128 tokens of context in a slot cache. Timed is what the runtime
runs: placing the tokens, and the forward; medians of repeats, not smoothed. A profile can stand in for that.
`plain_step_s` is the target alone, by which a run says whether speculation paid.
"""

import os
from collections.abc import Callable, Sequence
from math import nan
from statistics import median

import torch

from ..base.errors import ArgumentError, counted
from ..base.files import processor
from ..base.terminal import Progress
from ..decoding.results import Judged
from ..decoding.session import Session
from ..decoding.steps import Verify
from ..traces.meta import CostTable, Sampling
from ..traces.profile import Profile, ProfiledForwards
from .clock import between_s, mark
from .forward import ModelForward
from .forward_kinds import ForwardKind
from .pools.members import LoadedMembers, loaded_pool
from .pools.pool import ModelPool
from .world import TorchWorld

NEW_TOKENS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXT_TOKENS = 128
_LONGEST_ROW = 32
_BATCHED_ROW = 16


def measure_costs(
    pool: ModelPool,
    *,
    new_tokens: Sequence[int] = NEW_TOKENS,
    repeats: int = 21,
    stage: str = "timing forwards",
) -> dict[str, CostTable]:
    """Measured seconds of one forward, by member that has a model.

    A round times every point of every model once, so that a slow spell of the machine falls on all alike; a first
    round warms up and is not counted, nor is one forward of each model's smallest point when its turn comes. Batched
    points have rounds of their own: a small point after a large one would pay for its memory traffic. Threads are
    those torch has (`ModelPool.load(threads=...)` sets them).

    Points `new_tokens` are strictly increasing, above 32 multiples of 16; `repeats` counted rounds, >= 1. Progress
    calls it `stage`.

    Raises:
        ValueError: a point above 32 that is no multiple of 16, or no repeats.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    for count in new_tokens:
        if count > _LONGEST_ROW and count % _BATCHED_ROW:
            raise ValueError(f"new_tokens above {_LONGEST_ROW} must be multiples of {_BATCHED_ROW}, got {count}")
    context = max(1, min(CONTEXT_TOKENS, pool.context_tokens - _LONGEST_ROW))
    small = [count for count in new_tokens if count <= _LONGEST_ROW]
    groups = [group for group in (small, list(new_tokens[len(small) :])) if group]
    forwards = {
        member.name: pool.forward(level, "auto", share_weights=True)
        for level, member in enumerate(pool.members)
        if member.model is not None
    }
    seconds: dict[str, list[float]] = {name: [] for name in forwards}
    with Progress(stage, len(groups) * (repeats + 1), unit="rounds") as progress:
        for group in groups:
            medians = _medians(forwards, group, context, repeats, progress)
            for name in forwards:
                seconds[name] += medians[name]
    return {name: CostTable(new_tokens=tuple(new_tokens), seconds=tuple(taken)) for name, taken in seconds.items()}


def _medians(
    forwards: dict[str, ModelForward],
    group: Sequence[int],
    context: int,
    repeats: int,
    progress: Progress,
) -> dict[str, list[float]]:
    """Median seconds of each point of a group, by model, over `repeats` rounds and one more to warm up."""
    points = {name: [_forward_of(forward, count, context) for count in group] for name, forward in forwards.items()}
    taken: dict[str, list[list[float]]] = {name: [[] for _ in group] for name in forwards}
    for _ in range(repeats + 1):
        for name, forward in forwards.items():
            # The other models pushed this one out of the processor's caches; a draft is back in from its second token.
            points[name][0]()
            for seconds, point in zip(taken[name], points[name], strict=True):
                seconds.append(timed(point, forward.kv_shape.device))
        progress.advance()
    return {name: [median(seconds[1:]) for seconds in rows] for name, rows in taken.items()}


def num_rows(count: int) -> int:
    """Rows that so many new tokens are fed in."""
    return 1 if count <= _LONGEST_ROW else count // _BATCHED_ROW


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call on the device, whose queue is empty before: by its own events on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = mark(device)
    action()
    return between_s(start, mark(device))


def _forward_of(forward: ModelForward, count: int, context: int) -> Callable[[], object]:
    """A forward of `count` new tokens that can be called again and again; each call rolls the cache back first."""
    requests = [str(row) for row in range(num_rows(count))]
    width = count // len(requests)
    shape = forward.kv_shape
    cache = forward.slot_cache()
    for request in requests:
        held = torch.zeros(context, dtype=torch.long, device=shape.device)
        forward(held, cache.place([request], [context]), cache, slice(-1, None))
    tokens = torch.zeros(count, dtype=torch.long, device=shape.device)

    def run() -> None:
        for request in requests:
            cache.roll_back(request, context)
        forward(tokens, cache.place(requests, [width] * len(requests)), cache, slice(None))

    return run


def hardware(device: torch.device | None = None) -> str:
    """The machine in words: processor, cores, threads torch uses, and the accelerator if the device is one."""
    words = f"{processor()}, {counted(os.cpu_count() or 1, 'core')}, {counted(torch.get_num_threads(), 'thread')}"
    if device is None or device.type != "cuda":
        return words
    return f"{torch.cuda.get_device_name(device)}; {words}"


REPEATS = 7


def plain_step_s(
    pool: LoadedMembers, sampling: Sampling, num_rows: int, context_tokens: int, *, forward: ForwardKind = "auto"
) -> float:
    """Seconds of one step of plain decoding for `num_rows` requests together; NaN if the target's logits are broken.

    A step is a forward of one token of each request and the choice of the next; the median of a few is taken, after
    about `context_tokens` tokens.
    """
    members = loaded_pool(pool)
    world = TorchWorld(pool=pool, sampling=sampling, forward=forward)
    prompt = (0,) * max(1, min(context_tokens, pool.context_tokens - REPEATS - 1))
    step = Verify(members.target)
    items = []
    for number in range(num_rows):
        session = Session(
            pool=members, request_id=str(number), tag="", prompt=prompt, budget=REPEATS + 1, eos=frozenset()
        )
        world.open(session)
        items.append((session, step))
    taken = []
    for _ in range(REPEATS + 1):
        results = world.verify(members.target_level, items)
        taken.append(results.duration_s)
        for (session, _), row in zip(items, results.rows, strict=True):
            if not isinstance(row, Judged):
                return nan
            session.judged(step, members.target_level, row, duration_s=0.0, num_rows=num_rows)
    return median(taken[1:])  # the first one read the prompts


def tables_of(profile: Profile) -> dict[str, CostTable]:
    """The points that `measure_costs` would measure, by member; those beyond the measured shapes are left out.

    Raises:
        ArgumentError: a member none of whose shapes comes near such a point.
    """
    context = min(CONTEXT_TOKENS, max(shape.context_tokens for shape in profile.shapes))
    tables = {}
    for member in profile.meta.members:
        forwards = ProfiledForwards(profile.of(member.name), None)
        measured = {count: forwards.measured(num_rows(count), count, context * num_rows(count)) for count in NEW_TOKENS}
        known = {count: seconds for count, seconds in measured.items() if seconds is not None}
        if not known:
            raise ArgumentError(f"`profile` has no shapes of {member.name} that a recording could hold")
        tables[member.name] = CostTable(new_tokens=tuple(known), seconds=tuple(known.values()))
    return tables
