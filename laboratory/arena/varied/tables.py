"""What constants and ingredients are worth, as tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...findings.table import Cell, Rows, cell, table
from ..split import Side
from .change import DOUBLED, HALVED, Change
from .worth import Worth

PER_CENT = 100.0
CHANGES = {"halved": HALVED, "doubled": DOUBLED}


def constants_table(
    values: Mapping[str, float], sides: Sequence[Side], found: Callable[[Change, Side], Worth | None]
) -> Rows:
    """A row for each constant: its value, and by how much the mean ratio moves where it is halved and doubled.

    Args:
        values: by constant.
        sides: of the split, in the order of the columns.
        found: what a change is worth on a side; None where nothing was played with it.
    """
    rows = []
    for name, value in values.items():
        worths = {
            f"{side}, {words}": found(Change(field=name, factor=factor), side)
            for side in sides
            for words, factor in CHANGES.items()
        }
        moved = [cell(words, _moves(worth), "%", 2) for words, worth in worths.items()]
        rows.append([cell("constant", name), cell("value", f"{value:g}"), *moved, *_lost_most(worths.values())])
    return table("how far the mean over the best static chain moves", rows)


def ingredients_table(side: Side, found: Mapping[str, Worth | None]) -> Rows:
    """A row for each ingredient: mean and least ratio with it and without.

    Args:
        side: of the split.
        found: what it is worth there to leave it out, by ingredient; None where nothing was played without it.
    """
    rows = []
    for name, worth in found.items():
        figures = () if worth is None else (worth.mean_before, worth.mean, worth.least_before, worth.least)
        with_it, without, least_with, least_without = figures or (None,) * 4
        rows.append(
            [
                cell("left out", name),
                cell("cells", worth.cells if worth else 0),
                cell("mean with it", with_it, "", 3),
                cell("mean without", without, "", 3),
                cell("least with it", least_with, "", 3),
                cell("least without", least_without, "", 3),
                *_lost_most([worth]),
            ]
        )
    return table(f"ingredients left out, {side}", rows)


def _moves(worth: Worth | None) -> float | None:
    return None if worth is None else worth.mean_moves * PER_CENT


def _lost_most(worths: Iterable[Worth | None]) -> list[Cell]:
    """The cell that loses most by any of the changes."""
    most = max((worth for worth in worths if worth), key=lambda worth: worth.lost_most, default=None)
    return [
        cell("a cell loses at most", most.lost_most * PER_CENT if most else None, "%", 1),
        cell("which", str(most.lost_in) if most else ""),
    ]
