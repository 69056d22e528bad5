"""Training of small models: the target, which must also work with layers left out, and others on its distribution.

All share one loop, whose state is on disk and survives a kill. The others learn from text by the target and its
distribution at each position. Letters: N sequences, B texts of a batch, T tokens of a sequence, K = teacher_top.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from paceline.base.files import write_whole
from paceline.base.terminal import Progress
from paceline.runtime.features import INPUT
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from .recipe import TAGS, Distillation, Recipe, Schedule, Shape, Student
from .texts import Corpus
from .writing import write_texts


def make_model(shape: Shape, recipe: Recipe, *, seed: int) -> PreTrainedModel:
    """A network with random weights, drawn by the seed, and tied embeddings."""
    torch.manual_seed(seed)
    network: PreTrainedModel = AutoModelForCausalLM.from_config(_config(shape, recipe))
    return network


def layers_of(network: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers, first to last."""
    body: Any = network.base_model
    layers: nn.ModuleList = body.h if network.config.model_type == "gpt2" else body.layers
    return layers


def _config(shape: Shape, recipe: Recipe) -> PreTrainedConfig:
    common: dict[str, Any] = {
        "vocab_size": recipe.vocabulary_size,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "attn_implementation": _ATTENTION.get(shape.architecture, "sdpa"),
    }
    if shape.architecture == "gpt2":
        return _gpt2(shape, recipe, common)
    common |= {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "max_position_embeddings": recipe.context_tokens,
    }
    if shape.architecture == "gpt-neox":
        return GPTNeoXConfig(**common)
    common["num_key_value_heads"] = shape.num_heads
    if shape.architecture == "llama":
        return LlamaConfig(**common)
    head_dim = shape.hidden_size // shape.num_heads
    if shape.architecture == "qwen3":
        return Qwen3Config(**common, head_dim=head_dim)
    # Half a context, so that the windows of their layers have an effect.
    window = {"sliding_window": recipe.context_tokens // 2, "query_pre_attn_scalar": head_dim, "pad_token_id": None}
    kind = Gemma2Config if shape.architecture == "gemma2" else Gemma3TextConfig
    return kind(**common, **window, head_dim=head_dim)


def _gpt2(shape: Shape, recipe: Recipe, common: dict[str, Any]) -> GPT2Config:
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2Config(
        **common,
        **dropouts,
        n_embd=shape.hidden_size,
        n_inner=shape.intermediate_size,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        n_positions=recipe.context_tokens,
    )


# Gemma 2 caps its attention scores, which sdpa does not support.
_ATTENTION: dict[str, Literal["eager"]] = {"gemma2": "eager"}


def write_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Replace `path` in one step; the metadata is in the same file, so that both always match."""
    # Not by its own `save_file`: that raises no OSError for a full disk, and writes files that only the owner can read.
    write_whole(path, save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a file."""
    tensors: dict[str, Tensor] = load_file(path)
    return tensors


def save_run(path: Path, model: nn.Module, optimizers: list[Optimizer], *, step: int, seconds: float) -> None:
    """Write weights, optimizer states, the next step and the seconds spent so far."""
    tensors = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            tensors |= {f"optimizer.{names[parameter]}.{key}": value for key, value in state.items()}
    progress = torch.tensor([float(step), seconds], dtype=torch.float64)
    write_tensors({**tensors, "progress": progress}, path)


def load_run(path: Path, model: nn.Module, optimizers: list[Optimizer]) -> tuple[int, float]:
    """Restore the state from `save_run`; returns the next step and the seconds, (0, 0.0) without a file."""
    if not path.exists():
        return 0, 0.0
    tensors = read_tensors(path)
    owners = {parameter: each for each in optimizers for group in each.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[f"model.{name}"])
        prefix = f"optimizer.{name}."
        state = {
            key.removeprefix(prefix): value.to(parameter.device)
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        if state:
            owners[parameter].state[parameter] = state
    step, seconds = tensors["progress"].tolist()
    return int(step), seconds


WEIGHT_DECAY = 0.05
MOMENTUM = 0.95
EMBEDDING_RATE_SCALE = 0.5
MAX_GRADIENT_NORM = 1.0
STEPS_BETWEEN_LOSSES = 5  # shown; each waits for the device


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The figures of one training run."""

    num_tokens: int  # tokens seen, repeated ones counted again
    seconds: float  # wall time, interrupted parts included


def run_training(
    model: PreTrainedModel | nn.ModuleList,
    loss_at: Callable[[int, Tensor], Tensor],
    *,
    num_sequences: int,
    schedule: Schedule,
    recipe: Recipe | Distillation,
    sequence_tokens: int,
    checkpoint: Path,
    stage: str,
    is_done: Callable[[int], bool] = lambda _: False,
    optimizers: list[Optimizer] | None = None,
) -> TrainingRun:
    """Train `model` in place; continues from `checkpoint` where one exists.

    Args:
        model: changed in place.
        loss_at: loss of a step, given the indices `[num_rows]` of its sequences; it must depend on these two only, so
            that a continued run repeats an uninterrupted one.
        num_sequences: sequences to learn from.
        schedule: length and rates.
        recipe: has the seed that orders the sequences, and the seconds between two checkpoints.
        sequence_tokens: mean tokens of a sequence.
        checkpoint: file that holds the state.
        stage: name of the model, for the progress.
        is_done: whether to stop before a step; it must depend on its number and the weights only.
        optimizers: of the model's parameters, whose groups may have a `scale` of the rate; None: those for training the
            whole model.
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
            rows = _rows_at(step, schedule.num_rows, num_sequences, recipe.seed)
            loss = _take_step(model, optimizers, partial(loss_at, step, rows), schedule.rate_at(step))
            step += 1
            if step % STEPS_BETWEEN_LOSSES == 0 or step == schedule.num_steps:
                progress.advance_to(step, f"loss {float(loss):.3f}")
            now_s = time.monotonic()
            if now_s - saved_at_s >= recipe.checkpoint_every_s:
                saved_at_s = now_s
                save_run(checkpoint, model, optimizers, step=step, seconds=spent_s + now_s - started_at_s)
    model.eval()
    seconds = spent_s + time.monotonic() - started_at_s
    if step > first:
        save_run(checkpoint, model, optimizers, step=step, seconds=seconds)
    num_tokens = step * schedule.num_rows * sequence_tokens
    return TrainingRun(num_tokens=num_tokens, seconds=seconds)


class Muon(Optimizer):
    """Muon (Jordan et al. 2024) with Nesterov's momentum, its steps as large as AdamW's (Liu et al. 2025).

    As `torch.optim.Muon`, except that it computes in float32 on a CPU: without instructions for bfloat16 that of torch
    is some 25 times slower, most of the time of a training.
    """

    def __init__(self, matrices: list[nn.Parameter]) -> None:
        super().__init__(matrices, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the matrices by their gradients."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = _orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                matrix.mul_(1 - group["lr"] * WEIGHT_DECAY)
                matrix.add_(update, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def _orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: five steps of Newton and Schulz, by the factors of Jordan et al."""
    found = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = found.T if is_tall else found
    found = found / found.norm().clamp(min=1e-7)  # singular values of at most 1
    for _ in range(5):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=-4.775, alpha=2.0315), found, beta=3.4445)
    return found.T if is_tall else found


def _make_optimizers(model: PreTrainedModel) -> list[Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms.

    In 110 steps on this corpus Muon (Jordan et al. 2024) reached a loss of 2.4 where AdamW alone reached 4.7; on a CPU
    that is worth its extra time many times over.
    """
    # The input layer is a matrix too, in a drafter that reads hidden states.
    inside = [layers_of(model), getattr(model, INPUT, nn.Identity())]
    matrices = [parameter for part in inside for parameter in part.parameters() if parameter.ndim == 2]
    inner = set(matrices)
    others = [parameter for parameter in model.parameters() if parameter not in inner]
    return [
        Muon(matrices),
        torch.optim.AdamW(
            [{"params": others, "scale": EMBEDDING_RATE_SCALE}], betas=(0.9, 0.95), weight_decay=0.0, fused=True
        ),
    ]


def _take_step(
    model: nn.Module,
    optimizers: list[Optimizer],
    loss_of: Callable[[], Tensor],
    rate: float,
) -> Tensor:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        optimizer.zero_grad(set_to_none=True)
    loss = loss_of()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def _rows_at(step: int, num_rows: int, num_sequences: int, seed: int) -> Tensor:
    """Indices, int64 `[num_rows]`, of the sequences of a step; each pass over the data has its own order."""
    first, last = step * num_rows, (step + 1) * num_rows
    epochs = range(first // num_sequences, (last - 1) // num_sequences + 1)
    generators = (torch.Generator().manual_seed(seed + epoch) for epoch in epochs)
    orders = torch.cat([torch.randperm(num_sequences, generator=one) for one in generators])
    return orders[first - epochs.start * num_sequences :][:num_rows]


@contextmanager
def layers_kept(model: PreTrainedModel, kept: tuple[int, ...]) -> Iterator[None]:
    """Within the block run the model through some of its layers only; no KV cache."""
    every = model.model.layers
    model.model.layers = nn.ModuleList(every[layer] for layer in kept)
    try:
        yield
    finally:
        model.model.layers = every


def train_target(sequences: Tensor, recipe: Recipe, checkpoint: Path) -> tuple[PreTrainedModel, TrainingRun]:
    """Train the target on packed sequences `[N, sequence_tokens + 1]`; `checkpoint` is a file for the state.

    Each step goes through all layers, through exactly the layers of `slim`, or drops inner layers at random
    (LayerSkip, Elhoushi et al. 2024, arXiv:2404.16710, drops by depth; here every inner layer alike). Late slim
    steps learn from the full model's distribution instead of the text.
    """
    model = make_model(recipe.target, recipe, seed=recipe.seed)
    run = run_training(
        model,
        lambda step, rows: _step_loss(model, sequences[rows].long(), step, recipe),
        num_sequences=len(sequences),
        schedule=recipe.target_schedule,
        recipe=recipe,
        sequence_tokens=recipe.sequence_tokens,
        checkpoint=checkpoint,
        stage="target",
    )
    return model, run


def logits_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Next-token logits `[B, T, V]` of token ids `[B, T]`."""
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def _step_loss(model: PreTrainedModel, batch: Tensor, step: int, recipe: Recipe) -> Tensor:
    tokens, labels = batch[:, :-1], batch[:, 1:]
    rng = random.Random(f"{recipe.seed}/layers/{step}")
    kind = rng.random()
    is_slim = recipe.full_share <= kind < recipe.full_share + recipe.slim_share
    if is_slim and step >= recipe.slim_distil_from * recipe.target_schedule.num_steps:
        return _slim_distil_loss(model, tokens, recipe.slim_layers)
    if kind < recipe.full_share:
        logits = logits_of(model, tokens)
    else:
        last, kept = recipe.target.num_layers - 1, recipe.slim_layers
        if not is_slim:
            every = range(last + 1)
            kept = tuple(layer for layer in every if layer in (0, last) or rng.random() >= recipe.drop_prob)
        with layers_kept(model, kept):
            logits = logits_of(model, tokens)
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _slim_distil_loss(model: PreTrainedModel, tokens: Tensor, kept: tuple[int, ...]) -> Tensor:
    """Cross-entropy of the slim model to the full model's distribution; no gradient through the full model."""
    with torch.no_grad():
        probs = logits_of(model, tokens).softmax(-1)
    with layers_kept(model, kept):
        logits = logits_of(model, tokens)
    return functional.cross_entropy(logits.flatten(0, 1), probs.flatten(0, 1))


def train_student(
    student: Student,
    teacher: dict[str, Tensor],
    recipe: Recipe,
    checkpoint: Path,
    is_done: Callable[[PreTrainedModel, int], bool] = lambda _model, _step: False,
) -> tuple[PreTrainedModel, TrainingRun]:
    """Train a model to give the target's likeliest tokens the target's probabilities.

    `is_done` is called before each step, with the model and the step; True stops the training.
    """
    model = make_model(student.shape, recipe, seed=recipe.seed)
    tokens = teacher["tokens"]

    def loss_at(_: int, rows: Tensor) -> Tensor:
        logits = logits_of(model, tokens[rows, :-1].long())
        return _top_cross_entropy(logits, teacher["ids"][rows].long(), teacher["log_probs"][rows].float())

    run = run_training(
        model,
        loss_at,
        num_sequences=len(tokens),
        schedule=student.schedule,
        recipe=recipe,
        sequence_tokens=recipe.sequence_tokens,
        checkpoint=checkpoint,
        stage=student.name,
        is_done=lambda step: is_done(model, step),
    )
    return model, run


def _top_cross_entropy(logits: Tensor, ids: Tensor, log_probs: Tensor) -> Tensor:
    """Cross-entropy of logits `[B, T, V]` to the teacher's top tokens `[B, T, K]`, scaled to add up to 1.

    It equals the KL divergence (Hinton et al. 2015, arXiv:1503.02531, at temperature 1) up to a constant and the
    probability outside the top.
    """
    chosen = logits.log_softmax(-1).gather(-1, ids)
    return -(log_probs.softmax(-1) * chosen).sum(-1).mean()


SCORED_ROWS = 32


def make_teacher(
    target: PreTrainedModel,
    corpus: Corpus,
    sequences: Tensor,
    tokenizer: Tokenizer,
    recipe: Recipe,
    work_dir: Path,
) -> dict[str, Tensor]:
    """Write text with the target, add rows of the corpus and score all of it; read back if it exists.

    Returns `tokens` int16 `[N, T + 1]`, and of the target's K likeliest next tokens `ids` int16 `[N, T, K]` and
    `log_probs` float16 `[N, T, K]`.
    """
    path = work_dir / "teacher.safetensors"
    if not path.exists():
        generated = _generate_rows(target, corpus, tokenizer, recipe, work_dir)
        order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(recipe.seed + 1))
        tokens = torch.cat([generated, sequences[order[: recipe.corpus_rows]]])
        write_tensors({"tokens": tokens, **_score(target, tokens, recipe)}, path)
    return read_tensors(path)


def _generate_rows(
    target: PreTrainedModel, corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, work_dir: Path
) -> Tensor:
    writer = copy.deepcopy(target).to(torch.bfloat16).float().eval()  # the weights as they are stored
    batches = _prompt_batches(corpus, recipe)
    documents: list[np.ndarray] = []
    with Progress("writing", len(batches), unit="batches") as progress:
        for number, batch in enumerate(batches):
            part = work_dir / f"written-{number:03d}.safetensors"
            if not part.exists():
                prompts = [tokenizer.encode(prompt).ids for prompt in batch]
                _write_batch(writer, prompts, number, recipe, part)
            documents.extend(tensor.numpy() for _, tensor in sorted(read_tensors(part).items()))
            progress.advance_to(number + 1)
    random.Random(f"{recipe.seed}/written").shuffle(documents)
    flat = torch.from_numpy(np.concatenate(documents))
    return flat.unfold(0, recipe.sequence_tokens + 1, recipe.sequence_tokens).clone()


def _prompt_batches(corpus: Corpus, recipe: Recipe) -> list[list[str]]:
    """Prompts of one domain each, since their texts have about the same length."""
    batches = []
    per_tag = recipe.generated_rows // len(TAGS)
    for tag in TAGS:
        prompts = [item.prompt for item in corpus.train[tag][:per_tag]]
        size = recipe.generated_batch
        batches += [prompts[first : first + size] for first in range(0, len(prompts), size)]
    return batches


def _write_batch(writer: PreTrainedModel, prompts: list[list[int]], number: int, recipe: Recipe, part: Path) -> None:
    """Write one batch to a file; the first rows by sampling, the others greedily."""
    num_sampled = round(len(prompts) * recipe.sampled_share)
    documents = {}
    for first, rows, temperature in (
        (0, prompts[:num_sampled], recipe.sampling_temperature),
        (num_sampled, prompts[num_sampled:], 0.0),
    ):
        if not rows:
            continue
        texts = write_texts(
            writer, rows, num_tokens=recipe.generated_tokens, temperature=temperature, seed=recipe.seed + number
        )
        for row, (prompt, text) in enumerate(zip(rows, texts, strict=True), first):
            documents[f"{row:05d}"] = torch.tensor(prompt + text, dtype=torch.int16)
    write_tensors(documents, part)


@torch.no_grad()
def _score(target: PreTrainedModel, tokens: Tensor, recipe: Recipe) -> dict[str, Tensor]:
    ids, log_probs = [], []
    with Progress("scoring", len(tokens), unit="sequences") as progress:
        for first in range(0, len(tokens), SCORED_ROWS):
            logits = logits_of(target, tokens[first : first + SCORED_ROWS, :-1].long())
            top = logits.log_softmax(-1).topk(recipe.teacher_top, dim=-1)
            ids.append(top.indices.to(torch.int16))
            log_probs.append(top.values.to(torch.float16))
            progress.advance_to(min(first + SCORED_ROWS, len(tokens)))
    return {"ids": torch.cat(ids), "log_probs": torch.cat(log_probs)}
