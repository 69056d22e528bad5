"""Recording: every model's view of every context that a policy may ask about, request by request.

May import torch, transformers, traces and, of the runtime, kv, forward, pools, views, sampling, timing; knows nothing
of decoding.
"""
