"""What was recorded: tries of contexts or rounds of a log, their stores, importers and the synthetic generator.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from .errors import TraceFormatError
from .meta import Closure, CostTable, ModelInfo, NgramInfo, Sampling
from .open_recording import open_recording
from .recording import AboutRecording, Recording, summarise
from .rounds.meta import DrafterInfo, RoundsMeta
from .rounds.recording import RoundsRecording
from .rounds.rounds import Rounds, RoundsRequest
from .rounds.store import read_rounds, write_rounds
from .synthetic.generator import make_trace
from .synthetic.spec import SyntheticSpec
from .tries.closure import Branches, grow, trunk_allowance
from .tries.meta import TrieMeta
from .tries.recording import TrieRecording
from .tries.store import read_trace, write_trace
from .tries.summary import TrieGroup, TrieSummary
from .tries.trie import Trie, TrieRequest

__all__ = [
    "AboutRecording",
    "Branches",
    "Closure",
    "CostTable",
    "DrafterInfo",
    "ModelInfo",
    "NgramInfo",
    "Recording",
    "Rounds",
    "RoundsMeta",
    "RoundsRecording",
    "RoundsRequest",
    "Sampling",
    "SyntheticSpec",
    "TraceFormatError",
    "Trie",
    "TrieGroup",
    "TrieMeta",
    "TrieRecording",
    "TrieRequest",
    "TrieSummary",
    "grow",
    "make_trace",
    "open_recording",
    "read_rounds",
    "read_trace",
    "summarise",
    "trunk_allowance",
    "write_rounds",
    "write_trace",
]
