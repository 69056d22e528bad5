"""Every number that decides how a pool of the arena is trained and recorded; ours are in `recipes.toml`."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any, Self

from paceline.base.toml import TomlFileError, checked_toml, read_toml
from paceline.runtime.pools.pool_file import MemberEntry, NgramEntry
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..training.recipe import TAGS, Recipe, Schedule, Shape, read_recipe

# Steps over which a student's learning rate rises.
WARM_STEPS = 20
SLIM, TARGET = "slim", "target"


class PoolRecipeError(TomlFileError):
    """One thing that is wrong with a file of recipes."""


class Student(BaseModel):
    """A model that is trained to agree with the target.

    Attributes:
        name: of the member.
        shape: of the model.
        agreement: in (0, 1]; training stops once this share of the target's greedy tokens is chosen.
        tags: domains whose text it learns from and is stopped by; all of the pool if empty.
        num_steps: most optimizer steps; the goal may be missed.
        rate: peak learning rate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    shape: Shape
    agreement: Annotated[float, Field(gt=0.0, le=1.0)]
    tags: tuple[str, ...] = ()
    num_steps: Annotated[int, Field(gt=WARM_STEPS)]
    rate: Annotated[float, Field(gt=0.0)] = 5e-3

    def schedule(self, num_rows: int) -> Schedule:
        """A short rise, then a straight fall to a tenth."""
        knots = ((0, self.rate / 50), (WARM_STEPS, self.rate), (self.num_steps, self.rate / 10))
        return Schedule(num_steps=self.num_steps, num_rows=num_rows, knots=knots)


class PoolRecipe(BaseModel):
    """A pool and its recording; equal recipes give equal bytes on one machine.

    Attributes:
        what: one line for a reader.
        training: texts, tokenizer and target. Its `mid` and `draft` are not trained; `skip_layers` is a member `slim`
            unless empty; a domain with a share of 0 has no prompts.
        students: the trained members below the target, smallest first.
        lookup: the model-free member `ngram`, if any.
        checked_texts: texts of the target, of each domain, on which agreement is measured while a student learns.
        max_new_tokens: longest recorded answer.
        more_prompts: held-out prompts of each domain that are recorded besides the pool's own, >= 0.
        reach, run: of the recorded closure (monotone).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    training: Recipe
    students: tuple[Student, ...]
    lookup: NgramEntry | None
    checked_texts: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    more_prompts: Annotated[int, Field(ge=0)] = 0
    reach: Annotated[int, Field(ge=0)]
    run: Annotated[int, Field(ge=0)]

    @property
    def name(self) -> str:
        """Of pool and recording."""
        return self.training.name

    def deciding(self, *, recorded: bool) -> dict[str, Any]:
        """What decides the weights, as JSON holds it; with what decides the recording too, if `recorded`."""
        of_recording = {"reach", "run", "more_prompts"}
        left_out = {"what"} | (set() if recorded else of_recording)
        values = self.model_dump(mode="json", exclude=left_out)
        if not self.more_prompts:  # as if there were no such field: recordings without are older than it
            values.pop("more_prompts", None)
        return {**values, "training": {**values["training"], "checkpoint_every_s": None}}

    def stale(self, goals: Mapping[str, float]) -> "PoolRecipe":
        """The recipe of a pool NAME-stale in which some students have learned less; all else comes out the same.

        Args:
            goals: agreement with the target of these students, in (0, 1].

        Raises:
            ValueError: no student has a name, or a goal is out of range.
        """
        names = [student.name for student in self.students]
        if unknown := set(goals) - set(names):
            raise ValueError(f"pool {self.name}: goals must be of {', '.join(names)}, not of {min(unknown)}")
        students = (each.model_dump() | {"agreement": goals.get(each.name, each.agreement)} for each in self.students)
        training = replace(self.training, name=f"{self.name}-stale")
        update = {"students": tuple(map(Student.model_validate, students)), "training": training}
        return self.model_copy(update=update)

    @property
    def tags(self) -> tuple[str, ...]:
        """Domains that it has text of."""
        return tuple(tag for tag, share in zip(TAGS, self.training.shares, strict=True) if share > 0.0)

    @property
    def members(self) -> tuple[MemberEntry, ...]:
        """What the pool file lists: lookup, students, `slim`, target."""
        lookup = () if self.lookup is None else (MemberEntry(name="ngram", ngram=self.lookup),)
        students = tuple(MemberEntry(name=student.name, path=student.name) for student in self.students)
        skipped = self.training.skip_layers
        slim = (MemberEntry(name=SLIM, submodel_of=TARGET, skip_layers=skipped),) if skipped else ()
        return (*lookup, *students, *slim, MemberEntry(name=TARGET, path=TARGET))

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        names = [student.name for student in self.students]
        if len({*names, "ngram", SLIM, TARGET}) != len(names) + 3:
            raise ValueError(f"must have students of different names, none of them ngram, slim or target, not {names}")
        for student in self.students:
            if unknown := set(student.tags) - set(self.tags):
                raise ValueError(f"must have text of what {student.name} learns from, and has none of {min(unknown)}")
        target = self.training.target
        if self.training.skip_layers and target.architecture in ("gpt2", "gpt-neox"):
            raise ValueError(f"may have skip_layers only with a Llama-like target, not with {target.architecture}")
        for name, shape in ((TARGET, target), *((student.name, student.shape) for student in self.students)):
            if shape.hidden_size % (2 * shape.num_heads):
                rule = "must have hidden sizes that are even multiples of num_heads"
                raise ValueError(f"{rule}, not {shape.hidden_size} and {shape.num_heads} of {name}")
        return self


def pool_recipe(name: str, file: Path | None = None) -> PoolRecipe:
    """That of this name.

    Args:
        name: a table of `pools` in the file.
        file: TOML; ours if None. What a recipe leaves out is as in `defaults`, what its `training` leaves out as in
            `defaults.training`, and beyond that as in the recipe of the shipped pool.

    Raises:
        PoolRecipeError: it is not there or not sound.
    """
    with as_file(files(__package__).joinpath("recipes.toml")) as ours:
        return _read(name, file or ours)


def _read(name: str, file: Path) -> PoolRecipe:
    values = read_toml(file, "recipes", PoolRecipeError)
    pools, defaults = values.get("pools", {}), values.get("defaults", {})
    if name not in pools:
        raise PoolRecipeError(file, "pools", f"must be one of {', '.join(pools)}", name)
    merged: dict[str, Any] = {**defaults, **pools[name]}
    shipped = read_recipe("drafter")
    own = {key: getattr(shipped, key) for key in shipped.__dataclass_fields__}
    merged["training"] = {**own, **defaults.get("training", {}), **merged.get("training", {}), "name": name}
    return checked_toml(file, merged, PoolRecipe, PoolRecipeError)
