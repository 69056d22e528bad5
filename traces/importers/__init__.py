"""Recordings out of what other engines and benchmarks log, one small file per format.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from .formats import format_names
from .import_files import AUTO, choose_format, import_recording, read_recording
from .options import ImportOptions, Load

__all__ = [
    "AUTO",
    "ImportOptions",
    "Load",
    "choose_format",
    "format_names",
    "import_recording",
    "read_recording",
]
