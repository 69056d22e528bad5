"""Recording: every model's view of every context that a policy may ask about, request by request.

May import torch, transformers, traces and, of the runtime, caches, coupled_noise, forward, pools, sampling and timing;
knows nothing of decoding.
"""
