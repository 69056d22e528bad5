"""From run logs to figures and tables.

Reads what a run wrote; knows neither world.
"""

from .comparison import Comparison
from .quality import Quality, quality_of
from .side_by_side import SideBySide
from .summary import LevelSummary, Spread, Summary, summarise_run

__all__ = ["Comparison", "LevelSummary", "Quality", "SideBySide", "Spread", "Summary", "quality_of", "summarise_run"]
