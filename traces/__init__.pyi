"""Types of the names that `__init__.py` imports when they are asked for."""

from .contexts.meta import TrieMeta as TrieMeta
from .contexts.on_disk import read_trace as read_trace
from .contexts.on_disk import write_trace as write_trace
from .contexts.recording import TrieRecording as TrieRecording
from .contexts.trie import Trie as Trie
from .contexts.trie import TrieRequest as TrieRequest
from .errors import TraceFormatError as TraceFormatError
from .meta import Closure as Closure
from .meta import CostTable as CostTable
from .meta import ModelInfo as ModelInfo
from .meta import NgramInfo as NgramInfo
from .meta import Sampling as Sampling
from .opening import open_recording as open_recording
from .rounds.on_disk import read_rounds as read_rounds
from .rounds.on_disk import write_rounds as write_rounds
from .synthetic import SyntheticSpec as SyntheticSpec
from .synthetic import make_trace as make_trace
