"""From run logs to figures and tables.

Reads what a run wrote; imports neither world.
"""

from ..base.names import imported_when_asked

MODULES = {
    "Comparison": ".comparison",
    "LevelSummary": ".summary",
    "Quality": ".quality",
    "SideBySide": ".side_by_side",
    "Spread": ".summary",
    "Summary": ".summary",
    "quality_of": ".quality",
    "summarise_run": ".summary",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
