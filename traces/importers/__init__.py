"""Recordings out of what other engines and benchmarks log, one small file per format.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from ...base.names import imported_when_asked

MODULES = {
    "AUTO": ".formats",
    "ImportOptions": ".reading",
    "Load": ".reading",
    "choose_format": ".formats",
    "format_names": ".formats",
    "import_recording": ".formats",
    "read_recording": ".formats",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
