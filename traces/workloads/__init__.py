"""Workloads: requests that arrive, read from our own or foreign files, or drawn; memory does not grow with them.

Imports what `traces` imports, and no engine.
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
