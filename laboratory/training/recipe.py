"""Every number that decides how a pool of small models is trained; those of our pools are in `recipes.toml`."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

TAGS = ("code", "prose", "math", "translation", "dialogue", "edit")


Architecture = Literal["llama", "gpt2", "gpt-neox", "qwen3", "gemma2", "gemma3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of one small model.

    Attributes:
        architecture: of transformers.
        num_layers: decoder layers.
        hidden_size: width of the residual stream.
        num_heads: attention heads; each has its own keys and values.
        intermediate_size: width of the feed-forward layer.
    """

    architecture: Architecture = "llama"
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Length and step size of one training run.

    Attributes:
        num_steps: optimizer steps.
        num_rows: sequences in a batch.
        knots: (step, learning rate) in order of the step; straight lines between them.
    """

    num_steps: int
    num_rows: int
    knots: tuple[tuple[int, float], ...]

    def rate_at(self, step: int) -> float:
        """Learning rate of the zero-based `step`."""
        steps, rates = zip(*self.knots, strict=True)
        return float(np.interp(step, steps, rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The whole recipe of a pool; equal recipes give equal pools on one machine.

    Attributes:
        name: name of the pool.
        seed: seed of texts, initial weights and batches.
        vocabulary_size: entries of the tokenizer, the end token included.
        context_tokens: longest context the models accept.
        sequence_tokens: length of a training sequence.
        corpus_tokens: tokens of the packed training text.
        shares: share of each domain in the packed text, in the order of `TAGS`.
        prompts_per_tag: held-out prompts of each domain.
        target, mid, draft: shapes of the three trained models.
        skip_layers: layers of the target that the submodel `slim` leaves out.
        full_share: share of target steps through all layers.
        slim_share: share of target steps through the layers of `slim`; the rest drops layers at random.
        drop_prob: probability that a random step drops a layer between the first and the last.
        slim_distil_from: share of the target's steps after which slim steps learn from the full model.
        target_schedule, mid_schedule, draft_schedule: the three training runs.
        generated_rows: texts that the target writes for the distillation.
        generated_batch: texts written at a time.
        generated_tokens: most tokens written after a prompt.
        sampled_share: share of the texts written by sampling instead of greedily.
        sampling_temperature: temperature of those texts.
        corpus_rows: training sequences of the corpus that the distillation uses beside the generated text.
        teacher_top: tokens of the target's distribution that are kept for each position.
        checkpoint_every_s: seconds between two checkpoints.
        remark: what a reader of the card should know of the run, or nothing.
    """

    name: str
    seed: int
    vocabulary_size: int
    context_tokens: int
    sequence_tokens: int
    corpus_tokens: int
    shares: tuple[float, ...]
    prompts_per_tag: int
    target: Shape
    mid: Shape
    draft: Shape
    skip_layers: tuple[int, ...]
    full_share: float
    slim_share: float
    drop_prob: float
    slim_distil_from: float
    target_schedule: Schedule
    mid_schedule: Schedule
    draft_schedule: Schedule
    generated_rows: int
    generated_batch: int
    generated_tokens: int
    sampled_share: float
    sampling_temperature: float
    corpus_rows: int
    teacher_top: int
    checkpoint_every_s: float
    remark: str

    def __post_init__(self) -> None:
        """Raise ValueError where numbers do not fit together."""
        if len(self.shares) != len(TAGS):
            raise ValueError(f"shares must hold {len(TAGS)} numbers, got {len(self.shares)}")
        if abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"shares must add up to 1, got {sum(self.shares)}")
        if self.full_share + self.slim_share > 1.0:
            raise ValueError("full_share + slim_share must be <= 1")
        if self.sequence_tokens > self.context_tokens:
            raise ValueError(f"sequence_tokens must be <= {self.context_tokens}, got {self.sequence_tokens}")
        if any(not 0 < layer < self.target.num_layers - 1 for layer in self.skip_layers):
            raise ValueError(f"skip_layers must keep the first and the last layer, got {self.skip_layers}")


def read_recipe(name: str) -> Recipe:
    """That of this name in `recipes.toml`; what it does not say is as in `pico`, the recipe of the shipped pool."""
    known = tomllib.loads(files(__package__).joinpath("recipes.toml").read_text(encoding="utf-8"))
    return TypeAdapter(Recipe).validate_python({**known["pico"], **known[name], "name": name})
