"""Serving step by step while the make-up of a batch stays as it is: equal to `sim.serving.engine` in all it tells.

May import `sim.serving.engine`, which does not know of it.
"""
