"""Seconds of one forward of each model of a pool, on the device it is loaded on.

A point is a number of new tokens, all rows together. Up to 32 they are one row; more are rows of 16, as batched
verification has them. Every row stands behind up to 128 tokens of context in a preallocated cache, under the 4-D bool
mask of a real decoding step, so that what is timed is what runs. Medians of repeats, as measured: nothing is smoothed.

Letters: B rows, Q new tokens of a row, S slots of a row.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from ..traces.meta import CostTable
from .pool import ModelPool
from .progress import progress_bar
from .tree_forward import SlotLayer, causal_mask

NEW_TOKENS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXT_TOKENS = 128
_LONGEST_ROW = 32
_BATCHED_ROW = 16


def measure_costs(
    pool: ModelPool, *, new_tokens: Sequence[int] = NEW_TOKENS, repeats: int = 21, show_progress: bool = True
) -> dict[str, CostTable]:
    """Measured seconds of one forward, by member that has a model.

    A round times every point of every model once, so that a slow spell of the machine falls on all alike; a first
    round warms up and is not counted, nor is one forward of each model's smallest point when its turn comes. Batched
    points have rounds of their own: a small point behind a large one would pay for its memory traffic. Threads are
    those torch has (`ModelPool.load(threads=...)` sets them).

    Args:
        pool: the models, each on its device.
        new_tokens: points, strictly increasing; above 32 multiples of 16.
        repeats: counted rounds, >= 1.
        show_progress: draw a bar where stderr is a terminal.

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
    models = {member.name: member.model for member in pool.members if member.model is not None}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with progress_bar(shown=show_progress) as bar:
        task = bar.add_task("timing forwards", total=len(groups) * (repeats + 1))
        for group in groups:
            medians = _medians(models, group, context, repeats, lambda: bar.advance(task))
            for name in models:
                seconds[name] += medians[name]
    return {name: CostTable(new_tokens=tuple(new_tokens), seconds=tuple(taken)) for name, taken in seconds.items()}


def _medians(
    models: dict[str, PreTrainedModel],
    group: Sequence[int],
    context: int,
    repeats: int,
    after_round: Callable[[], object],
) -> dict[str, list[float]]:
    """Median seconds of each point of a group, by model, over `repeats` rounds and one more to warm up."""
    points = {name: [_forward_of(model, count, context) for count in group] for name, model in models.items()}
    taken: dict[str, list[list[float]]] = {name: [[] for _ in group] for name in models}
    for _ in range(repeats + 1):
        for name, model in models.items():
            # The other models pushed this one out of the processor's caches; a draft is back in from its second token.
            points[name][0]()
            for seconds, forward in zip(taken[name], points[name], strict=True):
                seconds.append(timed(forward, model.device))
        after_round()
    return {name: [median(seconds[1:]) for seconds in rows] for name, rows in taken.items()}


def timed(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the device's queue empty before and after."""
    _wait(device)
    started = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forward_of(model: PreTrainedModel, count: int, context: int) -> Callable[[], object]:
    """A forward of `count` new tokens that can be called again and again; each call cuts the cache back first."""
    width = count if count <= _LONGEST_ROW else _BATCHED_ROW
    rows = count // width
    layers = _filled_layers(model, rows, context, width)
    cache = Cache(layers=layers)
    tokens = torch.arange(count, device=model.device).reshape(rows, width) % model.config.vocab_size
    positions = torch.arange(context, context + width, device=model.device).expand(rows, width)
    mask = torch.as_tensor(causal_mask(context, width), device=model.device)[None, None].expand(rows, 1, -1, -1)

    @torch.inference_mode()
    def forward() -> None:
        for layer in layers:
            layer.cut(context)
        model(input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True)

    return forward


@torch.inference_mode()
def _filled_layers(model: PreTrainedModel, rows: int, context: int, width: int) -> list[SlotLayer]:
    """Cache layers that hold the same context in every row, with room for `width` more tokens."""
    one = [SlotLayer(capacity=context) for _ in range(model.config.num_hidden_layers)]
    tokens = torch.as_tensor(np.arange(context) % model.config.vocab_size, device=model.device)[None]
    positions = torch.arange(context, device=model.device)[None]
    mask = torch.as_tensor(causal_mask(0, context), device=model.device)[None, None]
    model(
        input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=Cache(layers=one), use_cache=True
    )
    many = [SlotLayer(capacity=context + width) for _ in one]
    for layer, source in zip(many, one, strict=True):
        layer.update(*(states.expand(rows, -1, -1, -1) for states in (source.keys, source.values)))
    return many


def hardware(device: torch.device | None = None) -> str:
    """The machine in words: processor, cores, threads torch uses, and the accelerator if the device is one."""
    words = f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if device is None or device.type != "cuda":
        return words
    return f"{torch.cuda.get_device_name(device)}; {words}"


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
