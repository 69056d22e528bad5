"""From run logs to figures and tables.

Reads what a run wrote; knows neither world.
"""

from .comparison import Comparison
from .conclusion import conclusion
from .interval import Interval, mean_interval
from .quality import Quality, quality_of
from .side_by_side import SideBySide
from .summary import LevelSummary, Spread, Summary, summarise_run
from .tables.comparison import comparison_table

__all__ = [
    "Comparison",
    "Interval",
    "LevelSummary",
    "Quality",
    "SideBySide",
    "Spread",
    "Summary",
    "comparison_table",
    "conclusion",
    "mean_interval",
    "quality_of",
    "summarise_run",
]
