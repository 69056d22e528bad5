"""The simulated world: outcomes from a recording, seconds from a cost model, time from SimPy.

Never imports the runtime and never needs torch.
"""
