"""How a token is chosen from logits: truncated distributions, and rejection sampling that is lossless level by level.

Pure functions over torch tensors, and a source of chance; `executor.sampler` puts them together for a run. May import
torch, numpy and traces.meta; knows no model and no cache.
"""
