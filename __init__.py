"""paceline: replay recorded token acceptance to compare chains of models, and run the same policy on real ones."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runtime.generation.generate import generate

__all__ = ["generate"]


def __getattr__(name: str) -> object:
    """`generate`, which needs torch: imported when it is asked for, so that `import paceline` needs nothing."""
    if name != "generate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return vars(importlib.import_module(f"{__name__}.runtime.generation.generate"))[name]
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith(__name__):
            raise
        hint = importlib.import_module(f"{__name__}.installing").install_hint("runtime")
        raise ModuleNotFoundError(f"{__name__}.generate runs real models and needs {error.name}: {hint}") from error
