"""Types of the functions that `__init__.py` imports when they are asked for."""

from .runtime.generation.generate import generate as generate
from .studies.compare import compare as compare
from .studies.import_logs import import_logs as import_logs
from .studies.open_recording import open_recording as open_recording
from .studies.sweep import sweep as sweep

__all__ = ["compare", "generate", "import_logs", "open_recording", "sweep"]
