"""Types of the names that `__init__.py` imports when they are asked for."""

from .comparison import Comparison as Comparison
from .quality import Quality as Quality
from .quality import quality_of as quality_of
from .side_by_side import SideBySide as SideBySide
from .summary import LevelSummary as LevelSummary
from .summary import Spread as Spread
from .summary import Summary as Summary
from .summary import summarise_run as summarise_run
