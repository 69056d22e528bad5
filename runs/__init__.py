"""The log of a run, in the same form for both worlds: how it is collected and written, and whether two are the same.

Imports decoding and traces; neither world, no policy and no report.
"""
