"""An observed run with its figures: what `paceline observe` prints, and `paceline metrics` of its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...reports.observed.figures import ObservedFigures, observed_figures
from ...reports.observed.tables import observed_lines, observed_tables
from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed, flat_rows
from ...runs.observed.meta import ObservedRun
from ...runs.observed.store import read_observed, write_observed

INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Observed(Printed):
    """A run of a server as its client saw it; prints as `paceline observe` does.

    Attributes:
        run: all that was seen.
        figures: of it.
    """

    run: ObservedRun
    figures: ObservedFigures

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped by Ctrl-C, or an order to end."""
        return self.run.meta.stopped == INTERRUPTED

    def write(self, path: str | Path) -> None:
        """Write the folder of the run; raises ValueError if it exists."""
        write_observed(self.run, Path(path))

    def tables(self) -> Sequence[Grid]:
        """What was served, and latencies."""
        return observed_tables(self.run, self.figures)

    def lines(self) -> Sequence[str]:
        """What a reader of the figures must know."""
        return observed_lines(self.run, self.figures)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        return {"meta": self.run.meta.model_dump(mode="json"), **self.figures.to_json()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return flat_rows([self.figures.to_json()])


def shown_run(run: ObservedRun | str | Path) -> Observed:
    """A run with its figures, or the folder of one; raises TraceFormatError for a folder that holds no sound one."""
    read = run if isinstance(run, ObservedRun) else read_observed(Path(run))
    return Observed(run=read, figures=observed_figures(read))
