"""Workloads: requests that arrive, read from the files of others or our own, or drawn; memory follows none of them.

Imports what `traces` imports, and knows no engine.
"""

from .arrival import Arrival, Turns, Workload, WorkloadAbout
from .formats.paceline_lines import lines_of_workload
from .open_workload import open_workload, with_options
from .options import WorkloadOptions

__all__ = [
    "Arrival",
    "Turns",
    "Workload",
    "WorkloadAbout",
    "WorkloadOptions",
    "lines_of_workload",
    "open_workload",
    "with_options",
]
