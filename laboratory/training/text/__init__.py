"""Texts that the small models are trained on: four generators and two readers of the standard library.

May import the standard library only.
"""
