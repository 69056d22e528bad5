"""Policies that commit exactly what the target alone would write, one a file; they differ in time only.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
