"""SpecRouter (arXiv:2505.07680): running profiles of members and pairs, and the search for the best chain by them.

May import the modules of `policies`, never `spec`, and neither world.
"""
