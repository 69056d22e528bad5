"""The models of a chain: pool files, loading, and models that a program holds already.

The command line reads `pool_file`, which needs no torch. May import the runtime's forward, tokenizers and threads,
decoding.pool and traces.meta; has nothing about requests.
"""
