"""Rounds of policies that only pending tokens decide (`About.by_pending`), each played once for all who come to it.

Knows nothing of seconds, of batches or of memory: what the rounds cost is worked out by whoever runs them.
"""
