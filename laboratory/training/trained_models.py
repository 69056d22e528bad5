"""Training of the target so that it also works with layers left out, and of the small models on its distribution."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from .architectures import make_model
from .loop import TrainingRun, run_training
from .recipe import Recipe, Schedule, Shape


@contextmanager
def layers_kept(model: PreTrainedModel, kept: tuple[int, ...]) -> Iterator[None]:
    """Run the model through some of its layers only while the context is open; no KV cache."""
    every = model.model.layers
    model.model.layers = nn.ModuleList(every[layer] for layer in kept)
    try:
        yield
    finally:
        model.model.layers = every


def slim_layers(recipe: Recipe) -> tuple[int, ...]:
    """The layers that `slim` keeps."""
    return tuple(layer for layer in range(recipe.target.num_layers) if layer not in recipe.skip_layers)


def train_target(sequences: torch.Tensor, recipe: Recipe, checkpoint: Path) -> tuple[PreTrainedModel, TrainingRun]:
    """Train the target on packed sequences.

    Each step goes through all layers, through exactly the layers of `slim`, or drops inner layers at random
    (LayerSkip, Elhoushi et al. 2024, arXiv:2404.16710, drops by depth; here every inner layer alike). Late slim
    steps learn from the full model's distribution instead of the text.

    Args:
        sequences: token ids, `[N, sequence_tokens + 1]`.
        recipe: shapes, shares and schedule.
        checkpoint: file for the state.
    """
    model = make_model(recipe.target, recipe, seed=recipe.seed)
    run = run_training(
        model,
        lambda step, rows: _step_loss(model, sequences[rows].long(), step, recipe),
        num_sequences=len(sequences),
        schedule=recipe.target_schedule,
        seed=recipe.seed,
        sequence_tokens=recipe.sequence_tokens,
        checkpoint_every_s=recipe.checkpoint_every_s,
        checkpoint=checkpoint,
        stage="target",
    )
    return model, run


def logits_of(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token logits in float32 `[B, T, V]` of token ids `[B, T]`, computed in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits.float()


def _step_loss(model: PreTrainedModel, batch: torch.Tensor, step: int, recipe: Recipe) -> torch.Tensor:
    tokens, labels = batch[:, :-1], batch[:, 1:]
    rng = random.Random(f"{recipe.seed}/layers/{step}")
    kind = rng.random()
    is_slim = recipe.full_share <= kind < recipe.full_share + recipe.slim_share
    if is_slim and step >= recipe.slim_distil_from * recipe.target_schedule.num_steps:
        return _slim_distil_loss(model, tokens, slim_layers(recipe))
    if kind < recipe.full_share:
        logits = logits_of(model, tokens)
    else:
        with layers_kept(model, slim_layers(recipe) if is_slim else _random_layers(recipe, rng)):
            logits = logits_of(model, tokens)
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _slim_distil_loss(model: PreTrainedModel, tokens: torch.Tensor, kept: tuple[int, ...]) -> torch.Tensor:
    """Cross-entropy of the slim model to the full model's distribution; no gradient through the latter."""
    with torch.no_grad():
        probs = logits_of(model, tokens).softmax(-1)
    with layers_kept(model, kept):
        logits = logits_of(model, tokens)
    return functional.cross_entropy(logits.flatten(0, 1), probs.flatten(0, 1))


def _random_layers(recipe: Recipe, rng: random.Random) -> tuple[int, ...]:
    last = recipe.target.num_layers - 1
    return tuple(layer for layer in range(last + 1) if layer in (0, last) or rng.random() >= recipe.drop_prob)


def train_student(
    name: str,
    shape: Shape,
    schedule: Schedule,
    teacher: dict[str, torch.Tensor],
    recipe: Recipe,
    checkpoint: Path,
    is_done: Callable[[PreTrainedModel, int], bool] = lambda _model, _step: False,
) -> tuple[PreTrainedModel, TrainingRun]:
    """Train a model of `shape` to give the likeliest tokens of the target the target's probabilities.

    `is_done` is asked before each step, with the model and the step, whether that is enough.
    """
    model = make_model(shape, recipe, seed=recipe.seed)
    tokens = teacher["tokens"]

    def loss_at(_: int, rows: torch.Tensor) -> torch.Tensor:
        logits = logits_of(model, tokens[rows, :-1].long())
        return _top_cross_entropy(logits, teacher["ids"][rows].long(), teacher["log_probs"][rows].float())

    run = run_training(
        model,
        loss_at,
        num_sequences=len(tokens),
        schedule=schedule,
        seed=recipe.seed,
        sequence_tokens=recipe.sequence_tokens,
        checkpoint_every_s=recipe.checkpoint_every_s,
        checkpoint=checkpoint,
        stage=name,
        is_done=lambda step: is_done(model, step),
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
