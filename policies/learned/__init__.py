"""Policies that were fitted to a recording before they decide: what is fitted, its file, and who uses it.

Numpy and the standard library only; what reads recordings to fit to is `studies.fitting`.
"""
