"""KV memory of serving members: which blocks are in use, which are cached for texts to come, and which go first.

Counts blocks; holds no keys and values. Imports nothing of the rest of the simulator.
"""
