"""Suffix decoding: what earlier text went on with is the draft. The index, what is kept, and the policy.

Standard library only.
"""
