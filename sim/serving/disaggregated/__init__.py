"""Prefill on some replicas, decoding on others, and the link that keys and values cross between them.

The replicas are those of the engine, step by step. What drives a run lends its clock and its events.
"""
