"""From run logs to figures and tables.

Reads what a run wrote; knows neither world.
"""

import importlib

# A name is imported when it is asked for: whoever imports one module of the package would wait for all of them.
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


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name], __name__))[name]
