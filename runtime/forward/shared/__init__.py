"""Attention over keys and values that all rows of a forward share, computed once for all of them.

May import torch and what its parent folder may; knows nothing of policies or sessions.
"""
