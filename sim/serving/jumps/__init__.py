"""Serving by the target alone, many steps at once: equal to `sim.serving.engine` picosecond for picosecond.

Between two changes of what the batch is made of, all steps are sums of arithmetic series of whole numbers. May import
`sim.serving.engine`, which does not know of it.
"""
