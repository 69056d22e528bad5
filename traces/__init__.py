"""What was recorded: tries of contexts or rounds of a log, their stores, importers and the synthetic generator.

Imports neither policies nor either world; needs numpy, pyarrow and pydantic, never SimPy or torch.
"""

import importlib

# A name is imported when it is asked for: whoever imports one module of the package would wait for all of them.
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


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name], __name__))[name]
