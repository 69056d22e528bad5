"""Types of the functions that `__init__.py` imports when they are asked for."""

from .runtime.generation.generate import generate as generate
from .runtime.generation.pool_assistants import load_assistants as load_assistants
from .runtime.generation.prepared import prepare as prepare
from .studies.agree import agree as agree
from .studies.compare import compare as compare
from .studies.decode import decode as decode
from .studies.import_logs import import_logs as import_logs
from .studies.open_recording import open_recording as open_recording
from .studies.record import record as record
from .studies.serving.compare_under_load import compare_under_load as compare_under_load
from .studies.serving.metrics import metrics as metrics
from .studies.serving.simulate import simulate as simulate
from .studies.sweep import sweep as sweep

__version__: str

__all__ = [
    "agree",
    "compare",
    "compare_under_load",
    "decode",
    "generate",
    "import_logs",
    "load_assistants",
    "metrics",
    "open_recording",
    "prepare",
    "record",
    "simulate",
    "sweep",
]
