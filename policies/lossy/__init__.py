"""Policies whose text may differ from the target's, one a file; their tables show by how much.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
