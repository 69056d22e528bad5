"""Recordings imported from other engines' logs: rounds by drafter, their store and counts.

Imports the records that both forms share, and nothing of tries.
"""
