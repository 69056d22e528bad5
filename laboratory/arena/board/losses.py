"""Where a policy loses: its worst cells, and the recordings, ladders and loads that it does worst in."""

from collections.abc import Mapping
from statistics import mean

from ..cell import PARTS, ArenaCell

WORST = 3  # cells that are named


def worst_cells(ratios: Mapping[ArenaCell, float]) -> list[tuple[ArenaCell, float]]:
    """The cells of the least ratios, least first."""
    return sorted(ratios.items(), key=lambda item: item[1])[:WORST]


def worst_by_part(ratios: Mapping[ArenaCell, float]) -> dict[str, tuple[str, float]]:
    """Of recordings, ladders and loads each the one of the least mean ratio, and that; none where there is one only."""
    found = {}
    for part in PARTS:
        means = by_part(ratios, part)
        if len(means) > 1:
            found[part] = min(means.items(), key=lambda item: item[1])
    return found


def by_part(ratios: Mapping[ArenaCell, float], part: str) -> dict[str, float]:
    """Mean ratio by the names of a part of cells."""
    groups: dict[str, list[float]] = {}
    for cell, ratio in ratios.items():
        groups.setdefault(getattr(cell, part), []).append(ratio)
    return {name: mean(group) for name, group in groups.items()}


def loses_at(ratios: Mapping[ArenaCell, float]) -> str:
    """The pattern in a line."""
    named = [f"{part} {name} ({ratio:.2f})" for part, (name, ratio) in worst_by_part(ratios).items()]
    return ", ".join(named)
