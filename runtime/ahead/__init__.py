"""Members of a pool at work at the same time for the same requests: in threads, or one after the other.

May import runtime.executor, runtime.state and the engine; the world of models stands above it.
"""
