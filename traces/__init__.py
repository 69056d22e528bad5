"""What was recorded: token tries, their store, the synthetic generator and the log of a run.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from .closure import Branches, grow, trunk_allowance
from .errors import TraceFormatError
from .meta import Closure, CostTable, ModelInfo, NgramInfo, Sampling, TraceMeta
from .store import read_trace, write_trace
from .summary import GroupSummary, TraceSummary, summarise
from .synthetic import make_trace
from .synthetic_spec import SyntheticSpec
from .trie import RequestRecord, Trace, Trie

__all__ = [
    "Branches",
    "Closure",
    "CostTable",
    "GroupSummary",
    "ModelInfo",
    "NgramInfo",
    "RequestRecord",
    "Sampling",
    "SyntheticSpec",
    "Trace",
    "TraceFormatError",
    "TraceMeta",
    "TraceSummary",
    "Trie",
    "grow",
    "make_trace",
    "read_trace",
    "summarise",
    "trunk_allowance",
    "write_trace",
]
