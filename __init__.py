"""paceline: replay recorded token acceptance to compare chains of models, and run the same policy on real ones.

A function is imported when it is asked for, so that `import paceline` needs nothing. `__init__.pyi` has their types.
`from paceline import *` has those that run real models only where torch is installed.
"""

import importlib
from importlib.metadata import version
from importlib.util import find_spec

MODULES = {
    "agree": "studies.agree",
    "best_cells": "studies.sweeps",
    "check_cost": "studies.plugin_checks",
    "check_importer": "studies.plugin_checks",
    "check_router": "studies.plugin_checks",
    "check_workload": "studies.plugin_checks",
    "collect": "studies.sweeps",
    "compare": "studies.compare",
    "compare_under_load": "studies.load",
    "decode": "studies.decode",
    "find_rates": "studies.rates",
    "generate": "runtime.generate",
    "import_logs": "studies.import_logs",
    "load_assistants": "runtime.prepare",
    "metrics": "studies.serving",
    "open_recording": "studies.setting",
    "prepare": "runtime.prepare",
    "recommend": "studies.recommend",
    "recommend_under_load": "studies.recommend_under_load",
    "record": "studies.record",
    "report": "studies.report",
    "settings": "studies.engine_settings",
    "simulate": "studies.serving",
    "sweep": "studies.compare",
    "sweep_grid": "studies.sweeps",
    "timeline": "studies.timeline",
    "tune": "studies.tune",
    "tune_under_load": "studies.tune_under_load",
    "what_if": "studies.what_if",
}

NEED_TORCH = {"agree", "decode", "generate", "load_assistants", "prepare", "record"}

__all__ = [name for name in MODULES if name not in NEED_TORCH or find_spec("torch") is not None]


def __getattr__(name: str) -> object:
    """A function by its name, or the version; raises ModuleNotFoundError with what to install for real models."""
    if name == "__version__":
        return version(__name__)
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # By name, since pytest imports this file as if it were no package.
    with importlib.import_module(f"{__name__}.base.errors").needs_torch(f"{__name__}.{name}"):
        found = vars(importlib.import_module(f"{__name__}.{MODULES[name]}"))[name]
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """With the functions that are not imported yet."""
    return sorted({*globals(), *MODULES, "__version__"})
