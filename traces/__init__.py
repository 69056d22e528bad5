"""What was recorded: tries of contexts or rounds of a log, their stores, importers and the synthetic generator.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from ..lazy_names import imported_when_asked

MODULES = {
    "Closure": ".meta",
    "CostTable": ".meta",
    "ModelInfo": ".meta",
    "NgramInfo": ".meta",
    "Sampling": ".meta",
    "SyntheticSpec": ".synthetic.spec",
    "TraceFormatError": ".errors",
    "Trie": ".tries.trie",
    "TrieMeta": ".tries.meta",
    "TrieRecording": ".tries.recording",
    "TrieRequest": ".tries.trie",
    "make_trace": ".synthetic.generator",
    "open_recording": ".forms",
    "read_rounds": ".rounds.store",
    "read_trace": ".tries.store",
    "write_rounds": ".rounds.store",
    "write_trace": ".tries.store",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
