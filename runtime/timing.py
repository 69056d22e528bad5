"""The machine in words, and seconds of a step of the target alone.

`plain_step_s` is the baseline that shows whether speculation paid.
"""

import os
from math import nan
from statistics import median

import torch

from ..base.errors import counted
from ..base.files import processor
from ..decoding.results import Judged
from ..decoding.session import Session
from ..decoding.steps import Verify
from ..traces.meta import Sampling
from .forward_kinds import ForwardKind
from .pools.members import LoadedMembers, loaded_pool
from .world import TorchWorld


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
