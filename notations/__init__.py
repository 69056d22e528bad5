"""Texts that options of several layers share, read in one place.

Stands below all that reads them; may import `arguments` only.
"""
