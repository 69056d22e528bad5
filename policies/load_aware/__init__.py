"""Policies that go by the load: the batch that runs, its contexts, its seconds and its deadlines, one a file.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
