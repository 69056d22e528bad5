"""Slim verifiers: which layers of the target to leave out, searched offline, and written to the pool file.

The command line reads `frontier`, `masks` and `pool_text`, which need no torch. May import the runtime's pools, decode,
prompts, timing and sampling, and policies; knows nothing of the command line.
"""
