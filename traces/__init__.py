"""Recordings: tries of contexts or rounds of a log, their stores, importers and the synthetic generator.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

from ..base.names import imported_when_asked

MODULES = {
    "Closure": ".meta",
    "CostTable": ".meta",
    "ModelInfo": ".meta",
    "NgramInfo": ".meta",
    "Sampling": ".meta",
    "SyntheticSpec": ".synthetic",
    "TraceFormatError": ".errors",
    "Trie": ".contexts.trie",
    "TrieMeta": ".contexts.meta",
    "TrieRecording": ".contexts.recording",
    "TrieRequest": ".contexts.trie",
    "make_trace": ".synthetic",
    "open_recording": ".opening",
    "read_rounds": ".rounds.on_disk",
    "read_trace": ".contexts.on_disk",
    "write_rounds": ".rounds.on_disk",
    "write_trace": ".contexts.on_disk",
}

__all__ = [*MODULES]
__getattr__ = imported_when_asked(__name__, MODULES)
