"""Matrix products of weights: the ways to take one, and which is the quickest on this machine.

May import torch and `runtime.forward`'s rounding and known choices; knows nothing of models.
"""
