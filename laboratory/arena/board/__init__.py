"""The leaderboard of the arena: what its runs say of each policy, as a page, a figure and JSON.

It may import all but the command line.
"""
