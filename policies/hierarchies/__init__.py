"""Lossless policies in which several members below the target draft for, judge or vote on each other, one a file.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
