"""Recording: every model's view of every context that a policy may reach, request by request.

May import torch, transformers, traces and, of the runtime, caches, coupled_noise, forward, pools, sampling and timing;
uses nothing of decoding.
"""
