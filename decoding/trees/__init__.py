"""Token trees as drafts: their shapes, how they grow, and what becomes of them under a verifier.

Shared by both worlds; imports neither of them.
"""
