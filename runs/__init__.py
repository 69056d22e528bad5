"""The log of a run, in the same form for both worlds: how it is collected, what its columns hold, how it is written.

Imports decoding and traces; neither world, no policy and no report.
"""
