"""Serving under load: replicas that batch requests as engines do, routers, and bounded memory.

Seconds come from cost models, outcomes from a recording. Never imports the runtime and never needs torch.
"""
