"""Types of the names that `__init__.py` imports when they are asked for."""

from .format import Format as Format
from .format import having as having
from .formats import AUTO as AUTO
from .formats import IMPORTERS as IMPORTERS
from .formats import choose_format as choose_format
from .formats import format_names as format_names
from .formats import import_recording as import_recording
from .formats import read_recording as read_recording
from .importing import ImportOptions as ImportOptions
from .importing import Load as Load
from .importing import Ongoing as Ongoing
from .importing import check_drafted as check_drafted
from .importing import rounds_at as rounds_at
from .importing import starts_of as starts_of
from .reading import Fields as Fields
