"""Workloads: requests that arrive, read from the files of others or our own, or drawn; memory follows none of them.

Imports what `traces` imports, and knows no engine.
"""

import importlib

# A name is imported when it is asked for: whoever imports one module of the package would wait for all of them.
MODULES = {
    "Arrival": ".arrival",
    "Turns": ".arrival",
    "Workload": ".arrival",
    "WorkloadAbout": ".arrival",
    "WorkloadOptions": ".options",
    "lines_of_workload": ".formats.paceline_lines",
    "open_workload": ".sources",
    "with_options": ".sources",
}

__all__ = [*MODULES]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name], __name__))[name]
