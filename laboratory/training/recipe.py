"""All numbers for training models: pools of small ones (`recipes.toml`), drafters (`recipe.toml`)."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from paceline.base.files import write_whole
from paceline.runtime.pools.pool_file import MemberEntry, NgramEntry
from pydantic import Field, TypeAdapter

TAGS = ("code", "prose", "math", "translation", "dialogue", "edit")
SLIM, TARGET = "slim", "target"  # names of members

Architecture = Literal["llama", "gpt2", "gpt-neox", "qwen3", "gemma2", "gemma3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of one small model."""

    architecture: Architecture = "llama"  # of transformers
    num_layers: int  # decoder layers
    hidden_size: int  # width of the residual stream
    num_heads: int  # attention heads; each has its own keys and values
    intermediate_size: int  # width of the feed-forward layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Length and step size of one training run."""

    num_steps: int
    num_rows: int  # sequences in a batch
    knots: tuple[tuple[int, float], ...]  # (step, learning rate) in order of the step; straight lines between them

    def __post_init__(self) -> None:
        if any(one >= other for (one, _), (other, _) in pairwise(self.knots)):
            raise ValueError(f"knots must be in order of their steps, got {self.knots}")

    def rate_at(self, step: int) -> float:
        """Learning rate of the zero-based `step`."""
        steps, rates = zip(*self.knots, strict=True)
        return float(np.interp(step, steps, rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Length and step size of a training on texts, however many there are.

    Raises ValueError for shares that are out of order.
    """

    num_epochs: float  # number of passes over each text, > 0
    num_rows: int  # texts in a batch
    most_steps: int = 3000  # a batch has more texts if there would be more steps
    knots: tuple[tuple[float, float], ...]  # (share of the steps, learning rate); straight lines between them

    def __post_init__(self) -> None:
        if any(one >= other for (one, _), (other, _) in pairwise(self.knots)):
            raise ValueError(f"knots must be in order of their shares, got {self.knots}")

    def schedule(self, num_texts: int) -> Schedule:
        """The schedule for `num_texts` texts."""
        rows = num_texts * self.num_epochs
        num_rows = max(self.num_rows, ceil(rows / self.most_steps))
        num_steps = ceil(rows / num_rows)
        at = {round(share * num_steps): rate for share, rate in self.knots}
        return Schedule(num_steps=num_steps, num_rows=num_rows, knots=tuple(at.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """A model that is trained on the target's distribution."""

    name: str
    shape: Shape
    schedule: Schedule  # of its training
    # in (0, 1]; training stops once this share of the target's greedy tokens is chosen. None: it does not
    agreement: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    tags: tuple[str, ...] = ()  # domains of its training text and of its agreement; all of the pool if empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The whole recipe of a pool; equal recipes give equal pools on one machine.

    Raises ValueError for numbers or members that do not fit together.
    """

    name: str
    seed: int  # seed of texts, initial weights and batches
    vocabulary_size: int  # entries of the tokenizer, the end token included
    context_tokens: int  # longest context the models accept
    sequence_tokens: int  # length of a training sequence
    corpus_tokens: int  # tokens of the packed training text
    # share of each domain in the packed text, in the order of `TAGS`; a domain with 0 has no prompts
    shares: tuple[float, ...]
    prompts_per_tag: int  # held-out prompts of each domain
    lookup: NgramEntry | None  # the model-free member `ngram`, if any
    target: Shape  # shape of the target
    skip_layers: tuple[int, ...]  # layers of the target that the submodel `slim` leaves out; empty: no `slim`
    full_share: float  # share of target steps through all layers
    slim_share: float  # share of target steps through the layers of `slim`; the rest drops layers at random
    drop_prob: float  # probability that a random step drops a layer between the first and the last
    slim_distil_from: float  # share of the target's steps after which slim steps learn from the full model
    target_schedule: Schedule  # of the target's training
    students: tuple[Student, ...]  # the trained members below the target, smallest first
    generated_rows: int  # texts that the target writes for the distillation
    generated_batch: int  # texts written at a time
    generated_tokens: int  # most tokens written after a prompt
    sampled_share: float  # share of the texts written by sampling instead of greedily
    sampling_temperature: float  # temperature of those texts
    corpus_rows: int  # training sequences of the corpus that the distillation uses beside the generated text
    teacher_top: int  # tokens of the target's distribution that are kept for each position
    checkpoint_every_s: float  # seconds between two checkpoints
    remark: str  # a remark on the run for the card, or ""

    def __post_init__(self) -> None:
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
        if self.skip_layers and self.target.architecture in ("gpt2", "gpt-neox"):
            kind = self.target.architecture
            raise ValueError(f"may have skip_layers only with a Llama-like target, not with {kind}")
        self._check_members()

    def _check_members(self) -> None:
        names = [student.name for student in self.students]
        if len({*names, "ngram", SLIM, TARGET}) != len(names) + 3:
            raise ValueError(f"must have students of different names, none of them ngram, slim or target, not {names}")
        for student in self.students:
            if unknown := set(student.tags) - set(self.tags):
                raise ValueError(f"must have text of what {student.name} learns from, and has none of {min(unknown)}")
        for name, shape in self.shapes.items():
            if shape.hidden_size % (2 * shape.num_heads):
                rule = "must have hidden sizes that are even multiples of num_heads"
                raise ValueError(f"{rule}, not {shape.hidden_size} and {shape.num_heads} of {name}")

    @property
    def tags(self) -> tuple[str, ...]:
        """Domains with text."""
        return tuple(tag for tag, share in zip(TAGS, self.shares, strict=True) if share > 0.0)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of the trained members, by name."""
        return {**{student.name: student.shape for student in self.students}, TARGET: self.target}

    @property
    def slim_layers(self) -> tuple[int, ...]:
        """The layers that `slim` keeps."""
        return tuple(layer for layer in range(self.target.num_layers) if layer not in self.skip_layers)

    @property
    def members(self) -> tuple[MemberEntry, ...]:
        """What the pool file lists: lookup, students, `slim`, target."""
        lookup = () if self.lookup is None else (MemberEntry(name="ngram", ngram=self.lookup),)
        skipped = self.skip_layers
        slim = (MemberEntry(name=SLIM, submodel_of=TARGET, skip_layers=skipped),) if skipped else ()
        students = (MemberEntry(name=student.name, path=student.name) for student in self.students)
        return (*lookup, *students, *slim, MemberEntry(name=TARGET, path=TARGET))

    def to_json(self) -> dict[str, Any]:
        """What determines the weights; without the interval of checkpoints."""
        return as_json(replace(self, checkpoint_every_s=0.0))


def read_recipe(name: str) -> Recipe:
    """The recipe of this name in `recipes.toml`; missing keys are as in `pico`, the recipe of the shipped pool."""
    known = _shipped("recipes.toml")
    return TypeAdapter(Recipe).validate_python({**known["pico"], **known[name], "name": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter that has its target's embeddings; raises ValueError for several layers with depths."""

    num_layers: int  # decoder layers, each of the target's shape
    head_tokens: int  # tokens that it can write, the most frequent ones of the target's answers
    course: Course  # of its training
    intermediate_size: int | None = None  # width of its feed-forward layers; None for the target's
    # depths at which it learns to draft from the target's hidden states, >= 0; 0 if it reads tokens only
    num_depths: int = 0

    def __post_init__(self) -> None:
        if self.num_depths < 0:
            raise ValueError(f"num_depths must be >= 0, got {self.num_depths}")
        if self.num_depths and self.num_layers != 1:
            raise ValueError(f"num_layers must be 1 beside num_depths, got {self.num_layers}")

    @property
    def num_layer_epochs(self) -> float:
        """Epochs times the layers of a text's forward."""
        return self.course.num_epochs * self.num_layers * max(1, self.num_depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """How submodels of the target are trained."""

    rank: int  # of the product added to each weight, >= 1
    head_tokens: int  # tokens whose probabilities are learned, the most frequent ones of the target's answers
    course: Course  # of the training


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of question: its share of them, in (0, 1], and first words, which the target continues."""

    share: float
    openings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distillation:
    """The whole recipe of drafters; equal ones give equal drafters on one machine.

    Raises ValueError for shares of tasks that do not add up to 1.
    """

    name: str
    seed: int  # of questions, answers and the order of texts
    num_shards: int  # parts of the texts, each written whole or not at all
    shard_rows: int  # dialogues begun in a part; those whose question does not end are dropped
    # most tokens of each
    question_tokens: int
    answer_tokens: int
    question_temperature: float  # at which questions are sampled
    answer_temperature: float  # at which a share of the answers are sampled
    sampled_share: float  # of the answers, in [0, 1]; the others are greedy
    held_out_rows: int  # the last dialogues, which are not used for training
    checkpoint_every_s: float  # seconds between two checkpoints
    students: Mapping[str, Drafter]  # by member's name
    restored: Restoring  # how the submodels of the pool's target are trained
    tasks: Mapping[str, Task]  # by tag

    def __post_init__(self) -> None:
        shares = sum(task.share for task in self.tasks.values())
        if abs(shares - 1.0) > 1e-6:
            raise ValueError(f"shares of tasks must add up to 1, got {shares}")

    def sized(self, dialogues: int | None, rows: int | None) -> "Distillation":
        """The same with `dialogues` begun dialogues, `rows` at a time; None: unchanged.

        Raises ValueError for dialogues that are no multiple of a part's.
        """
        shard_rows = rows or min(self.shard_rows, dialogues or self.shard_rows)
        begun = dialogues or self.num_shards * self.shard_rows
        if begun % shard_rows:
            raise ValueError(f"`--dialogues` must be a multiple of `--rows` ({shard_rows}), got {begun}")
        return replace(self, num_shards=begun // shard_rows, shard_rows=shard_rows)

    def to_json(self) -> dict[str, Any]:
        """What determines the texts and drafters; submodels' weights have a claim of their own."""
        values = as_json(replace(self, checkpoint_every_s=0.0))
        del values["restored"]
        return values


def read_distillation(name: str) -> Distillation:
    """The recipe of this name in `recipe.toml`; missing keys are as in `full`."""
    known = _shipped("recipe.toml")
    values = {**known["full"], **known[name], "tasks": known["tasks"], "name": name}
    return TypeAdapter(Distillation).validate_python(values)


def as_json(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass of this file
    """A recipe, or a part of one, as JSON."""
    values: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json")
    return values


def claim(path: Path, mine: Mapping[str, Any], rule: str) -> dict[str, Any]:
    """Write what the work beside a file is made by, so that work made by anything else is not used.

    Returns what is there, which may have further keys; raises ValueError, with `rule`, if it is something else.
    """
    if not path.exists():
        write_whole(path, json.dumps(mine, indent=1, sort_keys=True) + "\n")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if {**found, **mine} != found or found.keys() - mine.keys() - {"dtype"}:
        raise ValueError(rule)
    return found


def _shipped(file: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))
