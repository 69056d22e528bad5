"""How far simulated seconds are from measured ones, as tables: cells, and the best policies."""

from collections.abc import Sequence

from ..validation import Cell, Choice
from .grid import Grid, table


def cells_table(cells: Sequence[Cell], *, title: str) -> Grid:
    """A row for each policy, batch and tag."""
    return table([_cell_row(cell) for cell in cells], texts=("tag",), title=title)


def choices_table(choices: Sequence[Choice]) -> Grid:
    """A row for each batch and tag."""
    return table([_choice_row(choice) for choice in choices], texts=("tag", "simulated best", "measured best"))


def _cell_row(cell: Cell) -> dict[str, str]:
    return {
        "tag": cell.tag,
        "batch": f"{cell.batch}",
        "policy": cell.policy,
        "simulated s": f"{cell.simulated_s:.3f}",
        "measured s": f"{cell.measured_s:.3f}",
        "error": f"{cell.error:+.1%}",
        "of forwards": f"{cell.forwards_error:+.1%}",
        "of the rest": f"{cell.beside_error:+.1%}",
        "TPOT error": "" if cell.tpot_error is None else f"{cell.tpot_error:+.1%}",
        "spread": f"{cell.spread:.1%}",
        "steps": "equal" if cell.equal else "differ",
    }


def _choice_row(choice: Choice) -> dict[str, str]:
    return {
        "tag": choice.tag,
        "batch": f"{choice.batch}",
        "simulated best": choice.simulated,
        "measured best": choice.measured,
        "regret": f"{choice.regret:.1%}",
    }
