"""Recordings from logs of other engines and benchmarks.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from ...base.names import imported_when_asked

MODULES = {
    "AUTO": ".formats",
    "Fields": ".reading",
    "Format": ".format",
    "IMPORTERS": ".formats",
    "ImportOptions": ".importing",
    "Load": ".importing",
    "Ongoing": ".importing",
    "check_drafted": ".importing",
    "choose_format": ".formats",
    "format_names": ".formats",
    "having": ".format",
    "import_recording": ".formats",
    "read_recording": ".formats",
    "rounds_at": ".importing",
    "starts_of": ".importing",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
