"""All numbers for training and recording a pool of the arena; ours are in `recipes.toml`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

from paceline.base.errors import check_within
from paceline.base.toml import TomlFileError, checked_toml, read_toml
from paceline.traces.meta import Record
from pydantic import Field

from ..training.recipe import Recipe, read_recipe


class PoolRecipeError(TomlFileError):
    """One thing that is wrong with a file of recipes."""


class PoolRecipe(Record):
    """A pool and its recording; equal recipes give equal bytes on one machine."""

    what: str  # one line for a reader
    training: Recipe
    # texts of the target, of each domain, on which agreement is measured while a student learns
    checked_texts: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]  # longest recorded answer
    # held-out prompts of each domain that are recorded in addition to the pool's own, >= 0
    more_prompts: Annotated[int, Field(ge=0)] = 0
    # of the recorded closure (monotone)
    reach: Annotated[int, Field(ge=0)]
    run: Annotated[int, Field(ge=0)]

    @property
    def name(self) -> str:
        """The name of pool and recording."""
        return self.training.name

    def deciding(self, *, recorded: bool) -> dict[str, Any]:
        """What determines the weights, as JSON; with `recorded` also what determines the recording."""
        left_out = {"what", "training"} | (set() if recorded else {"reach", "run", "more_prompts"})
        return {**self.model_dump(mode="json", exclude=left_out), "training": self.training.to_json()}

    def stale(self, goals: Mapping[str, float]) -> "PoolRecipe":
        """The recipe of a pool NAME-stale in which some students have learned less; the rest is the same.

        Raises ValueError if a name in `goals` is no student's, or a goal is out of (0, 1].
        """
        names = [student.name for student in self.training.students]
        if unknown := set(goals) - set(names):
            raise ValueError(f"pool {self.name}: goals must be of {', '.join(names)}, not of {min(unknown)}")
        for name, goal in goals.items():
            check_within(f"pool {self.name}: the goal of {name}", goal, "(0, 1]")
        students = tuple(
            replace(each, agreement=goals.get(each.name, each.agreement)) for each in self.training.students
        )
        training = replace(self.training, name=f"{self.name}-stale", students=students)
        return self.model_copy(update={"training": training})


def pool_recipe(name: str, file: Path | None = None) -> PoolRecipe:
    """The recipe of this name in a file, ours if None; raises PoolRecipeError for a missing or invalid one.

    Missing keys are as in `defaults`, those of its `training` as in `defaults.training`, then as in the recipe
    `drafter`.
    """
    with as_file(files(__package__).joinpath("recipes.toml")) as ours:
        return _read(name, file or ours)


def _read(name: str, file: Path) -> PoolRecipe:
    values = read_toml(file, "recipes", PoolRecipeError)
    pools, defaults = values.get("pools", {}), values.get("defaults", {})
    if name not in pools:
        raise PoolRecipeError(file, "pools", f"must be one of {', '.join(pools)}", name)
    drafter = read_recipe("drafter")
    merged: dict[str, Any] = {**defaults, **pools[name]}
    merged["training"] = {
        **{field.name: getattr(drafter, field.name) for field in fields(Recipe)},
        **defaults.get("training", {}),
        **{key: merged.pop(key) for key in ("lookup", "students") if key in merged},
        **pools[name].get("training", {}),
        "name": name,
    }
    return checked_toml(file, merged, PoolRecipe, PoolRecipeError)
