"""What a workload holds, before anything is simulated: what `paceline workload` does."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...arguments import ArgumentError
from ...progress import tracked
from ...reports.serving.workload import workload_tables
from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed, flat_rows
from ...traces.workloads import WorkloadOptions, with_options
from ...traces.workloads.generated.spec import is_spec, parse_spec
from ...traces.workloads.summary import WorkloadSummary, summary_of
from ..open_recording import open_recording


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WorkloadDescription(Printed):
    """What a workload holds; prints as `paceline workload` does.

    Attributes:
        summary: what was counted.
    """

    summary: WorkloadSummary

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/workloads.md)."""
        return asdict(self.summary) | {"shared_share": self.summary.shared_share}

    def tables(self) -> Sequence[Grid]:
        """At a glance, and lengths."""
        return workload_tables(self.summary)

    def lines(self) -> Sequence[str]:
        """None: notes stand below the tables."""
        return ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return flat_rows([self.to_json()])


def describe_workload(
    workload: str | os.PathLike[str],
    options: WorkloadOptions | None = None,
    *,
    lengths_from: str | Path | None = None,
) -> WorkloadDescription:
    """Read or draw all of a workload, as its options scale and cut it, and count what it holds.

    Args:
        workload: a path or a generator's text; see `open_workload`.
        options: None: as it is.
        lengths_from: a .trace folder that a generator draws lengths from where its text gives none; None: the recording
            that comes with the package.

    Raises:
        TraceFormatError: a file that cannot be read, or breaks its format.
        ValueError: an option out of its range, or one that does not go with the workload.
    """
    asked = options or WorkloadOptions()
    recording = None
    if _draws_lengths(str(workload), asked):
        recording = open_recording(lengths_from)
    elif lengths_from is not None:
        raise ArgumentError(f"`lengths_from` must be left out: no lengths of {str(workload)!r} are drawn")
    opened = with_options(workload, asked, recording)
    watch = partial(tracked, stage="reading", unit="arrivals", total=opened.about.num_arrivals)
    return WorkloadDescription(summary=summary_of(opened, watch=watch))


def _draws_lengths(text: str, options: WorkloadOptions) -> bool:
    if not is_spec(text):
        return False
    spec = parse_spec(text, options.rate)
    return spec.prompt is None or spec.output is None
