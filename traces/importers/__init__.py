"""Recordings out of what other engines and benchmarks log.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from ...base.names import imported_when_asked

MODULES = {
    "AUTO": ".formats",
    "ImportOptions": ".rounds",
    "Load": ".rounds",
    "choose_format": ".formats",
    "format_names": ".formats",
    "import_recording": ".formats",
    "read_recording": ".formats",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
