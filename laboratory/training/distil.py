"""Training of the small models on the target's distribution."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from .loop import TrainingRun, make_model, rows_at, run_training
from .recipe import Recipe, Schedule, Shape
from .target import logits_of


def train_student(
    name: str, shape: Shape, schedule: Schedule, teacher: dict[str, torch.Tensor], recipe: Recipe, checkpoint: Path
) -> tuple[LlamaForCausalLM, TrainingRun]:
    """Train a model of `shape` to give the likeliest tokens of the target the target's probabilities."""
    model = make_model(shape, recipe, seed=recipe.seed)
    tokens = teacher["tokens"]

    def loss_at(step: int) -> torch.Tensor:
        rows = rows_at(step, num_rows=schedule.num_rows, num_sequences=len(tokens), seed=recipe.seed)
        logits = logits_of(model, tokens[rows, :-1].long())
        return _top_cross_entropy(logits, teacher["ids"][rows].long(), teacher["log_probs"][rows].float())

    run = run_training(
        model,
        loss_at,
        schedule=schedule,
        checkpoint=checkpoint,
        checkpoint_every_s=recipe.checkpoint_every_s,
        stage=name,
        tokens_per_step=schedule.num_rows * recipe.sequence_tokens,
    )
    return model, run


def _top_cross_entropy(logits: torch.Tensor, ids: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    """Cross-entropy to the teacher's top tokens, scaled to add up to 1.

    It equals the KL divergence (Hinton et al. 2015, arXiv:1503.02531, at temperature 1) up to a constant and the
    probability outside the top.

    Args:
        logits: of the student, `[B, T, V]`.
        ids: the teacher's likeliest tokens, `[B, T, K]`.
        log_probs: their log-probabilities, `[B, T, K]`.
    """
    chosen = logits.log_softmax(-1).gather(-1, ids)
    return -(log_probs.softmax(-1) * chosen).sum(-1).mean()
