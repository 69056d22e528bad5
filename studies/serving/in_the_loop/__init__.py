"""Hardware in the loop: requests arrive on a virtual clock, and real models do the work of the engine.

Joins the simulated engine with the runtime; needs torch.
"""
