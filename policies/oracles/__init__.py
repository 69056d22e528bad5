"""Policies that see what a recording holds ahead: the bound that regret is measured against. Simulator only.

May import what stands beside this folder in `policies`, never `registry`, and neither world.
"""
