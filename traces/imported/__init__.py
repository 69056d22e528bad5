"""Recordings imported from other engines' logs: rounds by drafter, their store and what they hold.

Imports the record of models from `..meta` and the folder both stores share; nothing of tries.
"""
