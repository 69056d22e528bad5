"""The one door to code that needs torch."""

import importlib
from importlib.util import find_spec
from types import ModuleType

from ..installing import install_hint

# Of the extra, in the order in which a reader knows them; which one an import misses first is chance.
NEEDED = ("torch", "transformers", "tokenizers")


def runtime_module(name: str) -> ModuleType:
    """`paceline.runtime.<name>`, or `paceline.laboratory...`, imported when a command needs it.

    Raises:
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    package = __package__.rpartition(".")[0]
    try:
        inside = name if name.startswith("laboratory.") else f"runtime.{name}"
        return importlib.import_module(f"{package}.{inside}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith(package):
            raise
        missing = next((module for module in NEEDED if find_spec(module) is None), error.name)
        raise ModuleNotFoundError(
            f"this command runs real models and needs {missing}: {install_hint('runtime')}"
        ) from error
