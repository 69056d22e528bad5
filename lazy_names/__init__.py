"""Names of a package that are imported when they are asked for (PEP 562).

Whoever imports one module of a package would wait for all that the package exports. Imports nothing of ours.
"""

import importlib
from collections.abc import Callable, Mapping


def imported_when_asked(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package.

    Args:
        package: its `__name__`.
        modules: by each name that it exports, the module that has it, relative to the package.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return vars(importlib.import_module(modules[name], package))[name]

    return get
