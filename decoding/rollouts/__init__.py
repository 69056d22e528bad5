"""Tree rollouts: several continuations of one prompt that branch at given depths of its answer.

Pure bookkeeping over sessions, the same for both worlds; may import decoding only, as its siblings may.
"""
