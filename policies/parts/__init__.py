"""What policies are built from: members taken by default, running averages, learners, budgets; no policy itself.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
