"""What was recorded: tries of contexts or rounds of a log, their stores, importers and the synthetic generator.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from .errors import TraceFormatError
from .forms import open_recording
from .meta import Closure, CostTable, ModelInfo, NgramInfo, Sampling
from .rounds.store import read_rounds, write_rounds
from .synthetic.generator import make_trace
from .synthetic.spec import SyntheticSpec
from .tries.meta import TrieMeta
from .tries.recording import TrieRecording
from .tries.store import read_trace, write_trace
from .tries.trie import Trie, TrieRequest

__all__ = [
    "Closure",
    "CostTable",
    "ModelInfo",
    "NgramInfo",
    "Sampling",
    "SyntheticSpec",
    "TraceFormatError",
    "Trie",
    "TrieMeta",
    "TrieRecording",
    "TrieRequest",
    "make_trace",
    "open_recording",
    "read_rounds",
    "read_trace",
    "write_rounds",
    "write_trace",
]
