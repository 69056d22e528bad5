"""Rounds of policies that only pending tokens decide (`About.by_pending`), each played once for all who come to it.

Rounds know nothing of seconds, of batches or of memory: whoever runs them works out what they cost, here the closed
loops of `simulate`, elsewhere `sim.serving.tabled`.
"""
