"""Matrix products of weights: the ways to take one, and which is the quickest on this machine."""
