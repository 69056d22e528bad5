"""Serving under load: replicas that batch requests as engines do, routers before them, the memory that bounds them.

Seconds come from cost models, outcomes from a recording. Never imports the runtime and never needs torch.
"""
