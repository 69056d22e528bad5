"""The optimizer loop that all trained models share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from ...progress import Progress
from ...runtime.features.input_layer import INPUT
from .architectures import layers_of
from .checkpoint import load_run, save_run
from .recipe import Schedule

WEIGHT_DECAY = 0.05
EMBEDDING_RATE_SCALE = 0.5
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """What one training run took.

    Attributes:
        num_tokens: tokens seen, repeated ones counted again.
        seconds: wall time, interrupted parts included.
    """

    num_tokens: int
    seconds: float


def run_training(
    model: PreTrainedModel | nn.ModuleList,
    loss_at: Callable[[int, torch.Tensor], torch.Tensor],
    *,
    num_sequences: int,
    schedule: Schedule,
    seed: int,
    sequence_tokens: int,
    checkpoint_every_s: float,
    checkpoint: Path,
    stage: str,
    is_done: Callable[[int], bool] = lambda _: False,
    optimizers: list[torch.optim.Optimizer] | None = None,
) -> TrainingRun:
    """Train `model` in place; continues from `checkpoint` where one exists.

    Args:
        model: changed in place.
        loss_at: loss of a step, given the indices `[num_rows]` of its sequences; it must depend on these two alone, so
            that a continued run repeats an uninterrupted one.
        num_sequences: that there are to learn from.
        schedule: length and rates.
        seed: orders the sequences.
        sequence_tokens: of a sequence, in the mean.
        checkpoint_every_s: seconds between two checkpoints.
        checkpoint: file that holds the state.
        stage: what is trained, for the progress.
        is_done: asked before each step, with its number, whether to stop here; it must depend on the number and the
            weights alone.
        optimizers: of the model's parameters, whose groups may have a `scale` of the rate; None for those of a network
            that is trained whole.
    """
    if optimizers is None:
        assert isinstance(model, PreTrainedModel)
        optimizers = _make_optimizers(model)
    first, spent_s = load_run(checkpoint, model, optimizers)
    started_at_s = saved_at_s = time.monotonic()
    model.train()
    with Progress(f"training {stage}", schedule.num_steps, unit="steps", done=first) as progress:
        step = first
        while step < schedule.num_steps and not is_done(step):
            rows = _rows_at(step, schedule.num_rows, num_sequences, seed)
            loss = _take_step(model, optimizers, partial(loss_at, step, rows), schedule.rate_at(step))
            step += 1
            progress.advance_to(step, f"loss {loss:.3f}")
            now_s = time.monotonic()
            if now_s - saved_at_s >= checkpoint_every_s:
                saved_at_s = now_s
                save_run(checkpoint, model, optimizers, step=step, seconds=spent_s + now_s - started_at_s)
    model.eval()
    seconds = spent_s + time.monotonic() - started_at_s
    if step > first:
        save_run(checkpoint, model, optimizers, step=step, seconds=seconds)
    num_tokens = step * schedule.num_rows * sequence_tokens
    return TrainingRun(num_tokens=num_tokens, seconds=seconds)


def _make_optimizers(model: PreTrainedModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms.

    In 110 steps on this corpus Muon (Jordan et al. 2024) reached a loss of 2.4 where AdamW alone reached 4.7;
    on a CPU that pays for its extra time many times over.
    """
    # The input layer is one, of a drafter that reads hidden states.
    inside = [layers_of(model), getattr(model, INPUT, torch.nn.Identity())]
    matrices = [parameter for part in inside for parameter in part.parameters() if parameter.ndim == 2]
    inner = set(matrices)
    others = [parameter for parameter in model.parameters() if parameter not in inner]
    return [
        torch.optim.Muon(matrices, momentum=0.95, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [{"params": others, "scale": EMBEDDING_RATE_SCALE}], betas=(0.9, 0.95), weight_decay=0.0, fused=True
        ),
    ]


def _take_step(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    loss_of: Callable[[], torch.Tensor],
    rate: float,
) -> float:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.zero_grad(set_to_none=True)
    loss = loss_of()
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    for optimizer in optimizers:
        optimizer.step()
    return float(loss.detach())


def _rows_at(step: int, num_rows: int, num_sequences: int, seed: int) -> torch.Tensor:
    """Indices, int64 `[num_rows]`, of the sequences of a step; each pass over the data has its own order."""
    picked = []
    for position in range(step * num_rows, (step + 1) * num_rows):
        epoch, place = divmod(position, num_sequences)
        picked.append(_order(num_sequences, seed + epoch)[place])
    return torch.stack(picked)


def _order(num_sequences: int, seed: int) -> torch.Tensor:
    return torch.randperm(num_sequences, generator=torch.Generator().manual_seed(seed))
