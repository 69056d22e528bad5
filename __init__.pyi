"""Types of the functions that `__init__.py` imports when they are asked for."""

from .runtime.generate import generate as generate
from .runtime.prepare import load_assistants as load_assistants
from .runtime.prepare import prepare as prepare
from .studies.agree import agree as agree
from .studies.compare import compare as compare
from .studies.compare import sweep as sweep
from .studies.decode import decode as decode
from .studies.import_logs import import_logs as import_logs
from .studies.load import compare_under_load as compare_under_load
from .studies.record import record as record
from .studies.serving import metrics as metrics
from .studies.serving import simulate as simulate
from .studies.setting import open_recording as open_recording

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
