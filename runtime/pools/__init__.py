"""The models of a chain: pool files, loading, and models that a program holds already.

Exports only what needs no torch, for the command line; `ModelPool` is in `pools.pool`. May import the runtime's
forward, tokenizers and threads, decoding.pool and traces.meta; knows nothing of requests.
"""

from .pool_file import MemberEntry, PoolFile, PoolFileError, read_pool_file

__all__ = ["MemberEntry", "PoolFile", "PoolFileError", "read_pool_file"]
