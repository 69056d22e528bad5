"""What was recorded: token tries, imported rounds, their stores, the synthetic generator and the log of a run.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from .errors import TraceFormatError
from .meta import Closure, CostTable, ModelInfo, NgramInfo, Sampling, TraceMeta
from .open_recording import open_recording
from .rounds.recording import DrafterInfo, Rounds, RoundsMeta, RoundsRequest, RoundsTrace
from .rounds.store import read_rounds, write_rounds
from .rounds.summary import summarise_rounds
from .synthetic.generator import make_trace
from .synthetic.spec import SyntheticSpec
from .tries.closure import Branches, grow, trunk_allowance
from .tries.shifted import shift_acceptance
from .tries.store import read_trace, write_trace
from .tries.summary import GroupSummary, TraceSummary, summarise
from .tries.trie import RequestRecord, Trace, Trie

__all__ = [
    "Branches",
    "Closure",
    "CostTable",
    "DrafterInfo",
    "GroupSummary",
    "ModelInfo",
    "NgramInfo",
    "RequestRecord",
    "Rounds",
    "RoundsMeta",
    "RoundsRequest",
    "RoundsTrace",
    "Sampling",
    "SyntheticSpec",
    "Trace",
    "TraceFormatError",
    "TraceMeta",
    "TraceSummary",
    "Trie",
    "grow",
    "make_trace",
    "open_recording",
    "read_rounds",
    "read_trace",
    "shift_acceptance",
    "summarise",
    "summarise_rounds",
    "trunk_allowance",
    "write_rounds",
    "write_trace",
]
