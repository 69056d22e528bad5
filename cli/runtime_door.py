"""The one door to code that needs torch."""

import importlib
from types import ModuleType

from ..installing import install_hint


def runtime_module(name: str) -> ModuleType:
    """`paceline.runtime.<name>`, imported when a command needs it.

    Raises:
        ModuleNotFoundError: the extra is not installed; the message says how.
    """
    package = __package__.rpartition(".")[0]
    try:
        return importlib.import_module(f"{package}.runtime.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith(package):
            raise
        raise ModuleNotFoundError(
            f"this command runs real models and needs {error.name}: {install_hint('runtime')}"
        ) from error
