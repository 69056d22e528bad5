"""From run logs to figures and tables.

Reads what a run wrote; knows neither world.
"""

from .comparison import Comparison
from .comparison_table import comparison_table
from .interval import Interval, mean_interval
from .summary import LevelSummary, Spread, Summary, summarise_run

__all__ = [
    "Comparison",
    "Interval",
    "LevelSummary",
    "Spread",
    "Summary",
    "comparison_table",
    "mean_interval",
    "summarise_run",
]
