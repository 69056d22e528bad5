"""One replica of a served run, step by step: the batch, its memory, what runs next, and what comes of it.

Knows no SimPy and no router.
"""
