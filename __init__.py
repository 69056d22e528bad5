"""paceline: replay recorded token acceptance to compare chains of models, and run the same policy on real ones.

A function is imported when it is asked for, so that `import paceline` needs nothing. `__init__.pyi` has their types.
"""

import importlib

MODULES = {
    "compare": "studies.compare",
    "generate": "runtime.generation.generate",
    "import_logs": "studies.import_logs",
    "open_recording": "studies.open_recording",
    "sweep": "studies.sweep",
}

__all__ = list(MODULES)


def __getattr__(name: str) -> object:
    """A function by its name; raises ModuleNotFoundError with what to install for one that runs real models."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = vars(importlib.import_module(f"{__name__}.{MODULES[name]}"))[name]
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith(__name__):
            raise
        hint = importlib.import_module(f"{__name__}.installing").install_hint("runtime")
        raise ModuleNotFoundError(f"{__name__}.{name} runs real models and needs {error.name}: {hint}") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """With the functions that are not imported yet."""
    return sorted({*globals(), *MODULES})
