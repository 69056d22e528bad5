"""Recordings out of what other engines and benchmarks log, one small file per format.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from ...lazy_names import imported_when_asked

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
__getattr__ = imported_when_asked(__name__, MODULES)
