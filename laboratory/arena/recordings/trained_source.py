"""Recordings of pools that are trained for the arena."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ....installing import needs_torch
from .made_once import made_once
from .pools.recipe import PoolRecipe, pool_recipe
from .source import Shelf


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSource:
    """A pool of the recipes, trained, and what it says of its held-out prompts.

    Attributes:
        pool: name of the recipe.
        file: of recipes; ours if None.
        goals: agreement by student, if the pool is to be one in which these have learned less; see `PoolRecipe.stale`.
    """

    pool: str
    file: Path | None = None
    goals: Mapping[str, float] = field(default_factory=dict)

    @property
    def slow(self) -> bool:
        """Yes: a pool is trained."""
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def recipe(self) -> object:
        """That of the pool and of its recording; raises PoolRecipeError for one that is not sound."""
        return self._recipe().deciding(recorded=True)

    def make(self, out: Path, *, name: str, shelf: Shelf) -> None:
        """Train the pool, if it is not there, and record it.

        Raises:
            ModuleNotFoundError: torch or transformers is not installed.
        """
        recipe = self._recipe()
        pool = self.trained(shelf.work)
        with needs_torch(f"recording {name}"):
            from ....studies.record import record
            from .pools.training import write_recorded_prompts
        prompts = out.with_name(f"{out.name}.prompts.jsonl")
        write_recorded_prompts(recipe, pool, prompts)
        record(
            pool,
            prompts,
            out,
            name=name,
            max_new_tokens=recipe.max_new_tokens,
            reach=recipe.reach,
            run=recipe.run,
            costs=False,
        )
        prompts.unlink()

    def trained(self, work: Path) -> Path:
        """The folder of the pool, `pools/NAME` below `work`; trained if need be, and continued where it was cut short.

        Raises:
            ModuleNotFoundError: torch or transformers is not installed.
        """
        recipe = self._recipe()
        deciding = json.dumps(recipe.deciding(recorded=False), sort_keys=True)
        fingerprint = hashlib.sha256(deciding.encode()).hexdigest()

        def train(part: Path) -> None:
            with needs_torch(f"pool {recipe.name}"):
                from .pools.training import train_arena_pool
            train_arena_pool(recipe, part, part.with_name(f"{part.name}.work"))

        return made_once(work / "pools" / recipe.name, fingerprint, train)

    def _recipe(self) -> PoolRecipe:
        recipe = pool_recipe(self.pool, self.file)
        return recipe.stale(self.goals) if self.goals else recipe
