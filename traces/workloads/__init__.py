"""Workloads: requests that arrive, read from the files of others or our own, or drawn; memory follows none of them.

Imports what `traces` imports, and knows no engine.
"""

from ...base.names import imported_when_asked

MODULES = {
    "Arrival": ".arrival",
    "GivesArrivals": ".registered",
    "Turns": ".arrival",
    "Workload": ".arrival",
    "WorkloadAbout": ".arrival",
    "WorkloadOptions": ".arrival",
    "lines_of_workload": ".formats",
    "open_workload": ".opening",
    "with_options": ".opening",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
