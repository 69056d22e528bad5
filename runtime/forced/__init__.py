"""Forced pools and runs: models of real sizes with random weights, whose accepts and refusals come from elsewhere.

Every forward, cache write and rollback is real, so that the seconds are; the text is not the models' own.
"""
