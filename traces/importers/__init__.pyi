"""Types of the names that `__init__.py` imports when they are asked for."""

from .formats import format_names as format_names
from .import_files import AUTO as AUTO
from .import_files import choose_format as choose_format
from .import_files import import_recording as import_recording
from .import_files import read_recording as read_recording
from .options import ImportOptions as ImportOptions
from .options import Load as Load
