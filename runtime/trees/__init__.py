"""Token trees on real models: grown layer by layer, judged in one forward, their accepted path kept in the caches.

May import what the rest of the runtime may; knows nothing of policies.
"""
