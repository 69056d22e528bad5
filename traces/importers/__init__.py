"""Recordings out of what other engines and benchmarks log, one small file per format.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

import importlib

# A name is imported when it is asked for: whoever imports one module of the package would wait for all of them.
MODULES = {
    "AUTO": ".import_files",
    "ImportOptions": ".options",
    "Load": ".options",
    "choose_format": ".import_files",
    "format_names": ".formats",
    "import_recording": ".import_files",
    "read_recording": ".import_files",
}

__all__ = [*MODULES]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name], __name__))[name]
