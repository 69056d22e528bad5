"""Recordings out of what other engines and benchmarks log, one small file per format.

Needs what `traces` needs; every reader yields requests one by one and raises TraceFormatError with file and line.
"""

from .detect import detect
from .formats import FORMATS, format_named, format_names
from .import_files import AUTO, choose_format, import_recording, read_recording
from .options import ImportOptions, Load

__all__ = [
    "AUTO",
    "FORMATS",
    "ImportOptions",
    "Load",
    "choose_format",
    "detect",
    "format_named",
    "format_names",
    "import_recording",
    "read_recording",
]
