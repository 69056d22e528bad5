"""Processes that torchrun started to run one pool together, each with its share of a model that is split over them.

All of them take the same steps. Rank 0 reads the clock, prints and writes; it may import torch only.
"""
