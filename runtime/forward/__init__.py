"""Batched forwards of requests of any lengths, each over its own part of a member's cache.

May import torch, transformers and `runtime.kv`; knows nothing of policies or sessions.
"""
