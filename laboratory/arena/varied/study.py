"""SpecRouter in cells of the arena as it is, with each constant halved and doubled, and without each ingredient.

Results are kept with all others of the arena, and a study that was cut short goes on from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....policies.spec import PolicySpec
from ....policies.specrouter.constants import CONSTANTS
from ....policies.specrouter.options import INGREDIENTS
from ...findings.table import Rows
from ..board.runs import OURS, BoardRuns, Ratios
from ..cell import ArenaCell
from ..run import ArenaAsked, ArenaResults, run_arena
from ..split import Side, Split
from .change import Change, changes_of, constants_of
from .tables import constants_table, ingredients_table
from .worth import Worth, worth_of

VARIED = f"{__package__}.varied_router:VariedRouter"
# The paper's form of windows is an option of its own, and what replaces it by default an ingredient.
PAPER_WINDOWS = f"{OURS},stop=window"


def of_change(change: Change) -> str:
    """The policy with a constant changed, in the words that name it in the store."""
    return f"{VARIED},change={change}"


def of_ingredients() -> Mapping[str, str]:
    """The policy without each ingredient, by ingredient."""
    return {name: f"{OURS},without={name}" for name in INGREDIENTS} | {"stop=confidence": PAPER_WINDOWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is to be played, and what came of it.

    Attributes:
        cells: of the arena.
        constants: whether constants are varied.
        ingredients: whether ingredients are left out.
    """

    cells: Sequence[ArenaCell]
    constants: bool = True
    ingredients: bool = True

    def play(self, work: Path, *, seeds: int = 1, jobs: int = 1) -> ArenaResults:
        """Play whatever is not kept yet; raises as `run_arena`."""
        policies = [PolicySpec.parse(text) for text in self.policies()]
        return run_arena(ArenaAsked(cells=self.cells, policies=policies, seeds=seeds, jobs=jobs, work=work))

    def policies(self) -> tuple[str, ...]:
        """All that are played, the one without a change first."""
        constants = map(of_change, changes_of(CONSTANTS)) if self.constants else ()
        ingredients = of_ingredients().values() if self.ingredients else ()
        return (OURS, *constants, *ingredients)

    def tables(self, runs: BoardRuns, split: Split) -> tuple[Rows, ...]:
        """What came of it, on either side of the split."""
        of_side = {side: set(split.recordings(side)) for side in (Side.tune, Side.report)}

        def worth(policy: str, side: Side) -> Worth | None:
            before, after = (_among(runs.ratios(name), of_side[side]) for name in (OURS, policy))
            return worth_of(before, after)

        found = []
        if self.constants:
            sides = tuple(of_side)
            found.append(constants_table(constants_of(CONSTANTS), sides, lambda one, at: worth(of_change(one), at)))
        if self.ingredients:
            found += [
                ingredients_table(side, {name: worth(policy, side) for name, policy in of_ingredients().items()})
                for side in of_side
            ]
        return tuple(found)


def _among(ratios: Ratios, recordings: set[str]) -> Ratios:
    return {cell: ratio for cell, ratio in ratios.items() if cell.recording in recordings}
