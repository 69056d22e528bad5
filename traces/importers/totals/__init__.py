"""Formats that know totals, not rounds: histograms, means and rates, and the rounds that are drawn to fit them.

Each module ends with its `Format`; what is drawn is drawn with a seed, marked as placed, and meets the totals exactly.
"""
