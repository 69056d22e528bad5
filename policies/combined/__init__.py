"""Policies made of other policies.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
