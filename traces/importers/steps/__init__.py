"""Formats that list steps one by one: which rounds there were is known, in order, and drawn only where it is not.

Each module ends with its `Format`; may use `totals` for answers of which only totals are known.
"""
