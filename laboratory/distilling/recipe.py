"""Every number that decides how drafters are distilled; those of our own are in `recipe.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from pydantic import TypeAdapter

from ..training.recipe import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """Size of a drafter and how it is trained.

    Attributes:
        num_layers: decoder layers, each of the target's shape.
        head_tokens: tokens that it can say, the commonest ones of the target's answers.
        num_depths: depths that it learns to draft at from the target's hidden states, >= 0; 0 if it reads tokens alone.
        schedule: steps, texts in a step and learning rates.
    """

    num_layers: int
    head_tokens: int
    schedule: Schedule
    num_depths: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError where numbers do not fit together."""
        if self.num_depths < 0:
            raise ValueError(f"num_depths must be >= 0, got {self.num_depths}")
        if self.num_depths and self.num_layers != 1:
            raise ValueError(f"num_layers must be 1 beside num_depths, got {self.num_layers}")

    @property
    def num_layer_rows(self) -> int:
        """Texts of all steps times the layers that they go through."""
        return self.schedule.num_steps * self.schedule.num_rows * self.num_layers * max(1, self.num_depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """How submodels of the target are trained.

    Attributes:
        rank: of what is added to each weight, >= 1.
        head_tokens: tokens whose probabilities are learned, the commonest ones of the target's answers.
        schedule: steps, texts in a step and learning rates.
    """

    rank: int
    head_tokens: int
    schedule: Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of question.

    Attributes:
        share: of the questions, in (0, 1].
        openings: first words of a question, which the target goes on to write.
    """

    share: float
    openings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The whole recipe; equal recipes give equal drafters on one machine.

    Attributes:
        name: of the recipe.
        seed: of questions, answers and the order of texts.
        num_shards: parts that the texts are written in, each whole or not at all.
        shard_rows: dialogues begun in a part; those whose question does not end are dropped.
        question_tokens: most tokens of a question.
        answer_tokens: most tokens of an answer.
        question_temperature: that questions are sampled at.
        answer_temperature: that a share of the answers are sampled at.
        sampled_share: of the answers, in [0, 1]; the others are greedy.
        held_out_rows: dialogues that nothing is trained on: the last ones.
        checkpoint_every_s: seconds between two checkpoints.
        students: by member's name.
        restored: how the submodels of the pool's target are trained.
        tasks: by tag.
    """

    name: str
    seed: int
    num_shards: int
    shard_rows: int
    question_tokens: int
    answer_tokens: int
    question_temperature: float
    answer_temperature: float
    sampled_share: float
    held_out_rows: int
    checkpoint_every_s: float
    students: Mapping[str, Student]
    restored: Restoring
    tasks: Mapping[str, Task]

    def __post_init__(self) -> None:
        """Raise ValueError where numbers do not fit together."""
        shares = sum(task.share for task in self.tasks.values())
        if abs(shares - 1.0) > 1e-6:
            raise ValueError(f"shares of tasks must add up to 1, got {shares}")


def read_recipe(name: str) -> Recipe:
    """That of this name in `recipe.toml`; what it does not say is as in `full`."""
    known = tomllib.loads(files(__package__).joinpath("recipe.toml").read_text(encoding="utf-8"))
    values = {**known["full"], **known[name], "tasks": known["tasks"], "name": name}
    return TypeAdapter(Recipe).validate_python(values)
