"""Types of the names that `__init__.py` imports when they are asked for."""

from .formats import AUTO as AUTO
from .formats import choose_format as choose_format
from .formats import format_names as format_names
from .formats import import_recording as import_recording
from .formats import read_recording as read_recording
from .rounds import ImportOptions as ImportOptions
from .rounds import Load as Load
