"""Forwards, draft loops and verifications over buffers that never move, so that a GPU replays each as one CUDA graph.

May import torch, `runtime.kv` and `runtime.sampling`; knows nothing of models, policies, sessions or requests.
What is captured and what runs without a GPU is the same code (`capture`).
"""
