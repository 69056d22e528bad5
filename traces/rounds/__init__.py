"""Recordings imported from other engines' logs: rounds by drafter, their store and what they hold.

Imports the records that both forms share and nothing of tries.
"""
