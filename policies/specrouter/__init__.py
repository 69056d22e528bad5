"""SpecRouter (arXiv:2505.07680): running profiles of members and pairs, and the search for the chain that they favour.

May import what stands beside this folder in `policies`, never `spec`, and neither world.
"""
