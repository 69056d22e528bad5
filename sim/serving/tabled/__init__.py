"""Serving by policies whose rounds are fixed, from what was played once: equal to `sim.serving.engine` as integers.

A request is a few numbers and its next round. Nobody is asked, no token is moved. May import `sim.serving.engine`,
which does not know of it.
"""
