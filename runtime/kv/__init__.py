"""Keys and values of running requests: where a forward writes, what it may look at, how a request is rolled back.

May import torch; knows nothing of policies, sessions or models beyond the shape of their caches.
"""
