"""Recordings of the arena: shipped, trained, synthetic, phased and imported ones, each made once and kept.

May import whatever makes a recording; models only where one is trained.
"""
