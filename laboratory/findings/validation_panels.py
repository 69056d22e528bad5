"""How far simulated seconds are from measured ones, as a figure."""

from collections.abc import Sequence
from statistics import median

from ...reports.validation import Cell
from .panel import Panel, Series


def validation_panels(cells: Sequence[Cell]) -> tuple[Panel, Panel]:
    """Simulated over measured seconds of every cell, and the error by policy; both by requests at a time.

    Args:
        cells: at least one.
    """
    batches = sorted({cell.batch for cell in cells})
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    by_batch = [(f"batch {batch}", [cell for cell in cells if cell.batch == batch]) for batch in batches]
    seconds = Panel(
        title="Seconds of each policy, batch and tag" + (", forced" if any(cell.forced for cell in cells) else ""),
        x_label="measured, s",
        y_label="simulated, s",
        kind="scatter",
        log_x=True,
        log_y=True,
        diagonal=True,
        series=tuple(
            Series(
                name=name,
                x=tuple(cell.measured_s for cell in some),
                y=tuple(cell.simulated_s for cell in some),
            )
            for name, some in by_batch
        ),
    )
    errors = Panel(
        title="Error of total seconds: median over tags, half their range as bars",
        x_label="",
        y_label="simulated over measured - 1, %",
        kind="bar",
        categories=tuple(policies),
        series=tuple(_errors(name, some, policies) for name, some in by_batch),
    )
    return seconds, errors


def _errors(name: str, cells: Sequence[Cell], policies: Sequence[str]) -> Series:
    """Of one batch: the median over tags, and half of their range."""
    of_policy = [[100 * cell.error for cell in cells if cell.policy == policy] for policy in policies]
    known = [(place, errors) for place, errors in enumerate(of_policy) if errors]
    return Series(
        name=name,
        x=tuple(float(place) for place, _ in known),
        y=tuple(median(errors) for _, errors in known),
        error=tuple((max(errors) - min(errors)) / 2 for _, errors in known),
    )
